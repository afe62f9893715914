// All uses of libtorch, as one translation unit: its headers take the compiler longer than all code here.

#include "deferred_weights.cpp"
#include "experts.cpp"
#include "frozen_product.cpp"
#include "fused_adamw.cpp"
#include "gradient_hooks.cpp"
#include "multiplications.cpp"
#include "norms.cpp"
#include "pinned.cpp"
#include "selection.cpp"
#include "sparse_backward.cpp"
#include "tensor_group.cpp"
