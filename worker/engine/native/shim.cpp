// All that uses libtorch, as one translation unit: the compiler takes longer to read its headers than for everything here.

#include "deferred_weights.cpp"
#include "fused_adamw.cpp"
#include "gradient_hooks.cpp"
#include "multiplications.cpp"
#include "norms.cpp"
#include "pinned.cpp"
#include "selection.cpp"
#include "sparse_backward.cpp"
#include "tensor_group.cpp"
