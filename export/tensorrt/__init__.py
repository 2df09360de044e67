"""ONNX tower -> TensorRT plans, with `tensorrt` where installed, else with `tensorrt_rtx`, which needs no GPU.

library  which library there is, its version, and the targets it can build for
options  batch ranges and builder settings; what of them a cache key must hold
build    the builder, in this process or in one of its own

Not yet run on a GPU: everything here was run with `tensorrt_rtx` on machines without one. What `tensorrt` does
differently (it builds for the GPU of the machine, and measures kernels there) follows its documentation.
"""
