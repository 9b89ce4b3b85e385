"""Accounts of the Triton kernels that need no GPU: what the compiler makes of each configuration that ships."""
