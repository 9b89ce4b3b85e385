"""A table of the Triton kernels that needs no GPU: what the compiler makes of each configuration that ships."""
