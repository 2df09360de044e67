"""The C++ core: table storage, fused lookup kernels, the executor. Python reaches it through `tfctr.core.library`."""
