"""A CUDA driver without a GPU: the functions of ``libcuda.so.1`` that tfctr binds, over memory of the process.

Work put on a stream waits there until the stream is synchronised, as on a GPU; between begin and end of a capture it is
recorded instead. ``calls`` lists every call with its arguments; ``done`` what streams have carried out, in order.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable

from tfctr.engines.tensorrt_cuda import FUNCTIONS

OK, INVALID, OUT_OF_MEMORY, NO_DEVICE, ILLEGAL_ADDRESS = 0, 1, 2, 100, 700
TEXTS = {
    INVALID: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    OUT_OF_MEMORY: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    NO_DEVICE: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    ILLEGAL_ADDRESS: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
}
MAJOR, MINOR = 75, 76


class Function:
    """As ctypes has it: typed by its user, and refusing arguments that do not convert."""

    def __init__(self, name: str, body: Callable[..., int]):
        self.name, self.body = name, body
        self.argtypes: tuple = ()
        self.restype = None

    def __call__(self, *arguments):
        assert self.restype is ctypes.c_int
        assert len(arguments) == len(self.argtypes), self.name
        return self.body(*[kind(one).value for kind, one in zip(self.argtypes, arguments, strict=True)])


class FakeDriver:
    """fail: function -> error code that it gives from now on. missing: functions that this driver lacks."""

    def __init__(self, capability=(8, 9), missing=()):
        self.capability = capability
        self.fail: dict[str, int] = {}
        self.calls: list[tuple] = []
        self.done: list[tuple] = []
        self.queues: dict[int, list] = {}
        self.capturing: dict[int, list] = {}
        self.memory: dict[int, ctypes.Array] = {}
        self.graphs: dict[int, list] = {}
        self.current = threading.local()
        self.lock = threading.RLock()
        self.handles = itertools.count(0x1000)
        self.texts = {
            code: [ctypes.create_string_buffer(part.encode()) for part in both] for code, both in TEXTS.items()
        }
        for name in FUNCTIONS:
            if name not in missing:
                setattr(self, name, Function(name, self._body(name)))

    def count(self, name: str) -> int:
        """How often ``name`` was called."""
        return sum(call[0] == name for call in self.calls)

    def arguments(self, name: str) -> list[tuple]:
        return [call[1:] for call in self.calls if call[0] == name]

    def enqueue(self, stream: int, what: tuple, work: Callable[[], None]) -> None:
        """Puts work on a stream, as a kernel launch does."""
        with self.lock:
            assert stream in self.queues, f"no stream {stream}"
            target = self.capturing.get(stream, self.queues[stream])
            target.append((what, work))

    def live(self) -> dict[str, int]:
        """What was made and not freed."""
        return {"memory": len(self.memory), "streams": len(self.queues), "graphs": len(self.graphs)}

    def _body(self, name):
        body = getattr(self, f"_{name}")
        free_of_context = {"cuInit", "cuDriverGetVersion", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain"}

        def call(*arguments):
            if name.startswith("cuGetError"):
                return body(*arguments)
            with self.lock:
                self.calls.append((name, *arguments))
                if name in self.fail:
                    return self.fail[name]
                if not name.startswith("cuDevice") and name not in free_of_context:
                    assert getattr(self.current, "context", None), f"{name} on a thread without a context"
                return body(*arguments)

        return call

    def _fill(self, address, kind, value):
        kind.from_address(address).value = value
        return OK

    def _cuInit(self, flags):
        return OK

    def _cuDriverGetVersion(self, out):
        return self._fill(out, ctypes.c_int, 13000)

    def _cuGetErrorName(self, code, out):
        return self._text(code, 0, out)

    def _cuGetErrorString(self, code, out):
        return self._text(code, 1, out)

    def _text(self, code, which, out):
        if code not in self.texts:
            return INVALID
        return self._fill(out, ctypes.c_void_p, ctypes.addressof(self.texts[code][which]))

    def _cuDeviceGet(self, out, number):
        return self._fill(out, ctypes.c_int, number) if number == 0 else INVALID

    def _cuDeviceGetName(self, out, size, device):
        ctypes.memmove(out, b"Fake GPU\0", 9)
        return OK

    def _cuDeviceGetAttribute(self, out, key, device):
        return self._fill(out, ctypes.c_int, self.capability[key - MAJOR])

    def _cuDevicePrimaryCtxRetain(self, out, device):
        return self._fill(out, ctypes.c_void_p, 0xC0)

    def _cuCtxSetCurrent(self, context):
        self.current.context = context
        return OK

    def _cuStreamCreate(self, out, flags):
        stream = next(self.handles)
        self.queues[stream] = []
        return self._fill(out, ctypes.c_void_p, stream)

    def _cuStreamDestroy_v2(self, stream):
        del self.queues[stream]
        return OK

    def _cuStreamSynchronize(self, stream):
        assert stream not in self.capturing
        queue, self.queues[stream] = self.queues[stream], []
        for what, work in queue:
            self.done.append(what)
            work()
        return OK

    def _allocate(self, out, size, kind):
        block = ctypes.create_string_buffer(b"\xee" * (size + 256), size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        self.memory[address] = block
        return self._fill(out, kind, address)

    def _cuMemAlloc_v2(self, out, size):
        return self._allocate(out, size, ctypes.c_uint64)

    def _cuMemHostAlloc(self, out, size, flags):
        return self._allocate(out, size, ctypes.c_void_p)

    def _cuMemFree_v2(self, address):
        del self.memory[address]
        return OK

    _cuMemFreeHost = _cuMemFree_v2

    def _cuMemcpyHtoDAsync_v2(self, device, host, size, stream):
        self.enqueue(stream, ("up", size, stream), lambda: ctypes.memmove(device, host, size))
        return OK

    def _cuMemcpyDtoHAsync_v2(self, host, device, size, stream):
        self.enqueue(stream, ("down", size, stream), lambda: ctypes.memmove(host, device, size))
        return OK

    def _cuStreamBeginCapture_v2(self, stream, mode):
        self.capturing[stream] = []
        return OK

    def _cuStreamEndCapture(self, stream, out):
        graph = next(self.handles)
        self.graphs[graph] = self.capturing.pop(stream)
        return self._fill(out, ctypes.c_void_p, graph)

    def _cuGraphInstantiateWithFlags(self, out, graph, flags):
        made = next(self.handles)
        self.graphs[made] = self.graphs[graph]
        return self._fill(out, ctypes.c_void_p, made)

    def _cuGraphLaunch(self, graph, stream):
        for what, work in self.graphs[graph]:
            self.enqueue(stream, what, work)
        return OK

    def _cuGraphDestroy(self, graph):
        del self.graphs[graph]
        return OK

    _cuGraphExecDestroy = _cuGraphDestroy
