// MKL asks this of itself before it chooses kernels, and takes slower ones where the answer is no, whatever the processor can do. An
// executable's definition comes before a library's, so it answers for libtorch's MKL. See docs/decisions/0003-libtorch.md.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }
