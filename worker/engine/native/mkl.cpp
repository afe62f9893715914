// MKL calls this on itself before it chooses kernels, and takes slower ones on a zero, whatever the processor supports. An executable's definition precedes a
// library's, so it overrides libtorch's MKL. See docs/decisions/0003-libtorch.md.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }
