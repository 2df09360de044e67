"""The Bazel route: its flags and folders agree with CMake's, and what it builds loads and has the same ops."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIST_OPS = """
import sys
from pathlib import Path
from tfctr.core import library
library.OPS_LIBRARY = Path(sys.argv[1])
print(*sorted(name for name in dir(library.load()) if name.startswith("Tfctr")))
"""


def ops_of(path: Path) -> list[str]:
    command = [sys.executable, "-c", LIST_OPS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bazel") is None, reason="no bazel here (see docs/building.md)")
def test_bazel_library_has_the_same_ops(repo_root, tmp_path):
    output = tmp_path / "bazel"
    command = ["bazel", f"--output_user_root={output}", "--batch", "build", "--jobs=2"]
    options = [f"--repo_env=TFCTR_PYTHON={sys.executable}", "//:libtfctr_ops.so"]
    done = subprocess.run(
        [*command, *options], cwd=repo_root, capture_output=True, text=True, timeout=2400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (library,) = output.glob("*/execroot/tfctr/bazel-out/*/bin/libtfctr_ops.so")
    assert ops_of(library) == ops_of(repo_root / "tfctr/core/libtfctr_ops.so")


def test_same_flags_as_cmake(repo_root):
    cmake = (repo_root / "CMakeLists.txt").read_text()
    bazel = (repo_root / "BUILD").read_text()
    isa = re.compile(r"-m(?:avx|fma)\w*")
    assert set(isa.findall(cmake)) == set(isa.findall(bazel))
    assert "-ffp-contract=off" in cmake
    assert "-ffp-contract=off" in bazel
    names = ("storage", "lookup", "engines", "embedding", "ops", "kernels")
    folders = {name for name in names if f"{{core}}/{name}/*.cc" in cmake}
    assert folders == {folder for folder in folders if f"tfctr/core/{folder}/*.cc" in bazel}
    assert len(folders) == 6
