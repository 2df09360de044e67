"""Loading the native libraries: the ops are there after `import tfctr`, in either order, once."""

import subprocess
import sys

import pytest
import tensorflow as tf

from tfctr.core import library
from tfctr.errors import InternalError, UsageError
from tfctr.version import __version__


def test_ops_are_registered_and_ours():
    version = library.load().tfctr_version()
    assert version.tfctr.numpy().decode() == __version__
    assert version.tensorflow.numpy().decode() == tf.__version__
    assert library.load() is library.load()


def test_tensorflow_imported_after_tfctr():
    """`import tfctr` alone is quick; importing TensorFlow later registers the ops and leaves its loader as it was."""
    code = (
        "import sys, tfctr\n"
        "assert 'tensorflow' not in sys.modules\n"
        "import tensorflow as tf\n"
        "from tensorflow.python.framework import op_def_registry\n"
        "assert op_def_registry.get('TfctrVersion') is not None\n"
        "assert type(tf.__spec__.loader).__name__ == 'SourceFileLoader', tf.__spec__.loader\n"
        "assert not any(type(f).__module__.startswith('tfctr') for f in sys.meta_path)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_ops", None)
    monkeypatch.setattr(library, "OPS_LIBRARY", tmp_path / "libtfctr_ops.so")
    with pytest.raises(InternalError, match=r"missing: .*libtfctr_ops\.so .*make build"):
        library.load()


def test_broken_library_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "libtfctr_ops.so"
    broken.write_bytes(b"\x7fELF but no more")
    monkeypatch.setattr(library, "_ops", None)
    monkeypatch.setattr(library, "OPS_LIBRARY", broken)
    with pytest.raises(InternalError, match="does not load"):
        library.load()


def test_user_op_libraries(tmp_path):
    library.load_op_libraries([library.OPS_LIBRARY, str(library.OPS_LIBRARY)])
    with pytest.raises(UsageError, match=r"none\.so: no such op library"):
        library.load_op_libraries([tmp_path / "none.so"])
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(UsageError, match=r"text\.so: is not an op library that TensorFlow 2\.21"):
        library.load_op_libraries([tmp_path / "text.so"])
