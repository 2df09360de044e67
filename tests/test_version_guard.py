"""Importing tfctr beside another TensorFlow minor release fails at once, with both versions in the message."""

import subprocess
import sys

import pytest

from tfctr.core import library
from tfctr.errors import TfctrError, VersionError
from tfctr.version import TENSORFLOW_MINOR, __version__


def python(code: str, *folders) -> subprocess.CompletedProcess:
    """Runs `code` in a Python that sees the standard library and `folders` only."""
    prelude = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    command = [sys.executable, "-I", "-S", "-c", prelude + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def other_tensorflow(tmp_path):
    """A folder in which TensorFlow 2.20.1 seems to be installed; importing it prints a line."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("__version__ = '2.20.1'\nprint('tensorflow imported')\n")
    info = tmp_path / "tensorflow-2.20.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.1\n")
    return tmp_path


def test_installed_but_not_imported(repo_root, other_tensorflow):
    done = python("import tfctr", other_tensorflow, repo_root)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"TensorFlow {TENSORFLOW_MINOR}.*" in last
    assert "TensorFlow 2.20.1" in last
    assert "tensorflow imported" not in done.stdout, "the version must be checked before anything is loaded"


def test_imported_before_tfctr(repo_root, other_tensorflow):
    done = python("import tensorflow\nimport tfctr", other_tensorflow, repo_root)
    assert done.returncode != 0
    assert "2.20.1" in done.stderr.strip().splitlines()[-1]
    assert f"{TENSORFLOW_MINOR}.*" in done.stderr.strip().splitlines()[-1]


def test_without_tensorflow(repo_root):
    done = python("import tfctr", repo_root)
    assert done.returncode != 0
    assert f"tfctr {__version__} needs TensorFlow {TENSORFLOW_MINOR}.*" in done.stderr


def test_is_an_import_error_and_ours():
    with pytest.raises(ImportError, match=r"2\.22\.0"):
        library.check_tensorflow("2.22.0")
    with pytest.raises(TfctrError, match=r"2\.2\.1"):
        library.check_tensorflow("2.2.1")
    with pytest.raises(VersionError, match="not installed"):
        library.check_tensorflow(None)


@pytest.mark.parametrize("version", [f"{TENSORFLOW_MINOR}.0", f"{TENSORFLOW_MINOR}.9", f"{TENSORFLOW_MINOR}.0-rc1"])
def test_patch_releases_fit(version):
    library.check_tensorflow(version)
