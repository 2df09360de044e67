"""Which library there is, and what it builds for."""

import types

import pytest

from export.tensorrt import library as module
from export.tensorrt.library import Library, installed, load, parse_targets
from tests.export.tensorrt.fake import Fake
from tfctr.errors import UsageError

RTX = Library(types.SimpleNamespace(ComputeCapability=None), "tensorrt_rtx", "1.7.1", ("sm80", "sm89", "sm120"))
PROPER = Library(types.SimpleNamespace(), "tensorrt", "11.4.0", ("sm90",))


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("sm80,sm89", ("sm80", "sm89")),
        (" SM89 , 80,sm_89,", ("sm89", "sm80")),
        (["sm120"], ("sm120",)),
        ("all", ("sm80", "sm89", "sm120")),
    ],
)
def test_targets(text, targets):
    assert parse_targets(text, RTX) == targets


@pytest.mark.parametrize("text", ["sm70", "ampere", "sm8", "sm80;sm89", "none", "current"])
def test_unknown_target_lists_the_known(text):
    with pytest.raises(UsageError, match=f"unknown target '{text}': tensorrt_rtx 1.7.1 builds for sm80, sm89, sm120"):
        parse_targets(text, RTX)


@pytest.mark.parametrize("target", ["sm90", "sm100"])
def test_data_centre_targets_need_tensorrt(target):
    with pytest.raises(UsageError, match=f"{target} needs the package tensorrt, on a machine with such a GPU"):
        parse_targets(target, RTX)


def test_tensorrt_builds_for_its_own_gpu():
    assert parse_targets("sm90", PROPER) == ("sm90",)
    with pytest.raises(UsageError, match="tensorrt 11.4.0 builds for sm90$"):
        parse_targets("sm80", PROPER)


def test_tensorrt_without_a_gpu():
    lonely = Library(types.SimpleNamespace(), "tensorrt", "11.4.0", ())
    for text in ("sm90", "all"):
        with pytest.raises(UsageError, match="builds for the GPU of its machine, and this one has none"):
            parse_targets(text, lonely)


@pytest.mark.parametrize("text", ["", " , ", []])
def test_no_target(text):
    with pytest.raises(UsageError, match="no target given; tensorrt_rtx 1.7.1 builds for sm80"):
        parse_targets(text, RTX)


def cuda(major=9, minor=0, fails=()):
    """A driver library whose calls fill in what they are given."""

    def attribute(target, which, device):
        target._obj.value = {75: major, 76: minor}[which]
        return int("attribute" in fails)

    return types.SimpleNamespace(
        cuInit=lambda flags: 100 * ("init" in fails),
        cuDeviceGet=lambda device, k: int("device" in fails),
        cuDeviceGetAttribute=attribute,
    )


def test_gpu_of_the_machine(monkeypatch):
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: cuda(10, 3))
    assert module.gpu_target() == "sm103"
    for fails in ("init", "device", "attribute"):
        monkeypatch.setattr(module.ctypes, "CDLL", lambda name, fails=fails: cuda(fails=fails))
        assert module.gpu_target() is None


def test_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(module.ctypes, "CDLL", missing)
    assert module.gpu_target() is None


def test_nothing_installed(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert installed() is None
    with pytest.raises(UsageError, match="TensorRT is not installed: pip install tensorrt-rtx-cu13"):
        load.__wrapped__()
    with pytest.raises(UsageError, match="tensorrt_rtx is not installed"):
        load.__wrapped__("tensorrt_rtx")


def test_tensorrt_is_preferred(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(module.importlib, "import_module", lambda name: fake)
    monkeypatch.setattr(module, "gpu_target", lambda: "sm90")
    found = load.__wrapped__()
    assert (found.name, found.version, found.targets, found.chooses_target) == ("tensorrt", "11.4.0", ("sm90",), False)


def test_library_that_does_not_load(monkeypatch):
    def broken(name):
        raise OSError("libnvinfer.so.11: cannot open shared object file")

    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(module.importlib, "import_module", broken)
    with pytest.raises(UsageError, match="tensorrt is installed but does not load: libnvinfer.so.11"):
        load.__wrapped__()
