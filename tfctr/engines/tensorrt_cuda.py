"""The few calls of the CUDA driver that running a TensorRT plan needs, through ctypes.

The driver's own library (``libcuda.so.1``) is bound, not a CUDA runtime: it is on every machine with a GPU whichever
CUDA release TensorFlow and TensorRT brought along, its symbols are versioned and stay, and its streams, memory and
primary context are those of the runtime that TensorRT uses. Calls release the GIL.

Not yet run on a GPU: the tests have a fake of the library. Names, argument types and constants: ``cuda.h`` of CUDA 13.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from tfctr.errors import TfctrError

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream, which others use
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile
_NAME_BYTES = 256

_INT, _UINT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
_DEVICE_POINTER, _FLAGS = ctypes.c_uint64, ctypes.c_ulonglong
_OUT = ctypes.c_void_p  # address of what the call fills in

# Function -> argument types. All return CUresult.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (_INT, _OUT),
    "cuGetErrorString": (_INT, _OUT),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetName": (_OUT, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuCtxSetCurrent": (_POINTER,),
    "cuStreamCreate": (_OUT, _UINT),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamSynchronize": (_POINTER,),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_DEVICE_POINTER,),
    "cuMemHostAlloc": (_OUT, _SIZE, _UINT),
    "cuMemFreeHost": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_DEVICE_POINTER, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _DEVICE_POINTER, _SIZE, _POINTER),
    "cuStreamBeginCapture_v2": (_POINTER, _INT),
    "cuStreamEndCapture": (_POINTER, _OUT),
    "cuGraphInstantiateWithFlags": (_OUT, _POINTER, _FLAGS),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
    "cuGraphDestroy": (_POINTER,),
}


class CudaError(TfctrError):
    """A call of the CUDA driver failed: names the call, CUDA's name of the error and its text."""


class Driver:
    """The driver's library; each call is checked.

    library: what ``ctypes.CDLL`` gives. Raises CudaError: the driver is too old for a function.
    """

    def __init__(self, library: Any):
        self._functions = {}
        for name, types in FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise CudaError(f"the CUDA driver has no {name}: it is too old; CUDA 12 or later is needed") from error
            function.argtypes, function.restype = types, _INT
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> None:
        """Calls ``name``; CudaError with CUDA's own words unless it succeeds."""
        code = self._functions[name](*arguments)
        if code:
            raise CudaError(f"{name}: {self._text('cuGetErrorName', code)}: {self._text('cuGetErrorString', code)}")

    def filled(self, name: str, kind: Any, *arguments: Any) -> int:
        """The value that ``name`` fills in at its first argument."""
        value = kind()
        self.call(name, ctypes.addressof(value), *arguments)
        return int(value.value or 0)

    def _text(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        failed = self._functions[function](code, ctypes.addressof(text))
        return f"error {code}" if failed or text.value is None else text.value.decode(errors="replace")


def open_library() -> Any:
    """``libcuda.so.1``. CudaError: not on this machine."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise CudaError(f"no NVIDIA driver here: {error}") from error


@functools.cache
def driver() -> Driver:
    """The machine's driver, started. CudaError: there is none, or it finds no GPU (with CUDA's text)."""
    found = Driver(open_library())
    found.call("cuInit", 0)
    return found


class Gpu:
    """One GPU through its primary context, which TensorRT and TensorFlow use too.

    number: CUDA's, so CUDA_VISIBLE_DEVICES counts. Thread-safe; :meth:`use` comes first on each thread.
    """

    def __init__(self, found: Driver, number: int = 0):
        self._driver = found
        self.number = number
        self._device = found.filled("cuDeviceGet", ctypes.c_int, number)
        major, minor = (
            found.filled("cuDeviceGetAttribute", ctypes.c_int, key, self._device) for key in (_MAJOR, _MINOR)
        )
        self.target = f"sm{major}{minor}"
        name = ctypes.create_string_buffer(_NAME_BYTES)
        found.call("cuDeviceGetName", ctypes.addressof(name), _NAME_BYTES, self._device)
        self.name = name.value.decode(errors="replace")
        self._context = 0
        self._lock = threading.Lock()

    def use(self) -> None:
        """Makes the GPU's primary context that of the calling thread. Making it takes memory of the GPU, so it is done
        when something runs first, and kept to the end of the process, as TensorFlow does."""
        if not self._context:
            with self._lock:
                if not self._context:
                    self._context = self._driver.filled("cuDevicePrimaryCtxRetain", ctypes.c_void_p, self._device)
        self._driver.call("cuCtxSetCurrent", self._context)

    def new_stream(self) -> int:
        return self._driver.filled("cuStreamCreate", ctypes.c_void_p, _NON_BLOCKING)

    def end_stream(self, stream: int) -> None:
        self._driver.call("cuStreamDestroy_v2", stream)

    def wait(self, stream: int) -> None:
        """Until all work on ``stream`` is done; errors of that work come out here."""
        self._driver.call("cuStreamSynchronize", stream)

    def device_memory(self, size: int) -> int:
        """Address of ``size`` bytes on the GPU, aligned to 256."""
        return self._driver.filled("cuMemAlloc_v2", ctypes.c_uint64, size)

    def free_device(self, address: int) -> None:
        self._driver.call("cuMemFree_v2", address)

    def pinned_memory(self, size: int) -> int:
        """Address of ``size`` bytes of page-locked host memory, which copies need to be asynchronous."""
        return self._driver.filled("cuMemHostAlloc", ctypes.c_void_p, size, 0)

    def free_pinned(self, address: int) -> None:
        self._driver.call("cuMemFreeHost", address)

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        self._driver.call("cuMemcpyHtoDAsync_v2", device, host, size, stream)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        self._driver.call("cuMemcpyDtoHAsync_v2", host, device, size, stream)

    def begin_capture(self, stream: int) -> None:
        """What is put on ``stream`` from here on is recorded, not run."""
        self._driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        """What was recorded, as something that :meth:`launch` takes; 0 where nothing could be recorded."""
        made = ctypes.c_void_p()
        self._driver.call("cuStreamEndCapture", stream, ctypes.addressof(made))
        graph = made.value
        if not graph:
            return 0
        try:
            return self._driver.filled("cuGraphInstantiateWithFlags", ctypes.c_void_p, graph, 0)
        finally:
            self._driver.call("cuGraphDestroy", graph)

    def launch(self, recorded: int, stream: int) -> None:
        self._driver.call("cuGraphLaunch", recorded, stream)

    def free_recorded(self, recorded: int) -> None:
        self._driver.call("cuGraphExecDestroy", recorded)


@functools.cache
def gpu(number: int = 0) -> Gpu:
    """GPU ``number`` of this machine. CudaError where there is none, with CUDA's text."""
    return Gpu(driver(), number)
