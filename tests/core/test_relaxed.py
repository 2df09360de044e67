"""How rows are read and written (storage/relaxed.h): plain vector code in a release, atomics for ThreadSanitizer."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The same two loops by the helper and by hand: an update of a row, and a copy of one.
SOURCE = """
#include "tfctr/core/storage/relaxed.h"
using tfctr::LoadRelaxed;
using tfctr::StoreRelaxed;
extern "C" {
void scale_by_hand(float* row, const float* by, size_t n) {
  for (size_t i = 0; i < n; ++i) row[i] = row[i] * by[i];
}
void scale_relaxed(float* row, const float* by, size_t n) {
  for (size_t i = 0; i < n; ++i) StoreRelaxed(row + i, LoadRelaxed(row + i) * by[i]);
}
void copy_by_hand(float* __restrict to, const float* __restrict row, size_t n) { memcpy(to, row, n * sizeof(float)); }
void copy_relaxed(float* __restrict to, const float* __restrict row, size_t n) { tfctr::ReadRow(to, row, n); }
}
"""


def functions(folder: Path, flags: list[str]) -> dict[str, list[str]]:
    """Returns the instructions of each function, without addresses and padding."""
    source, compiled = folder / "relaxed.cc", folder / "relaxed.o"
    source.write_text(SOURCE)
    common = ["-std=c++17", "-fPIC", "-ffp-contract=off", "-I", str(ROOT)]
    subprocess.run(["g++", *common, *flags, "-c", str(source), "-o", str(compiled)], check=True)
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(compiled)], check=True, capture_output=True)
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n\n", listing.stdout.decode()):
        if head := re.search(r"^[0-9a-f]+ <(\w+)>:\n", block, re.MULTILINE):
            lines = re.findall(r"^\s*[0-9a-f]+:\s+(.*?)\s*$", block[head.end() - 1 :], re.MULTILINE)
            found[head[1]] = [
                re.sub(r"\b[0-9a-f]+ <\w+(\+0x[0-9a-f]+)?>", "", line) for line in lines if "nop" not in line
            ]
    return found


@pytest.mark.parametrize("isa", [[], ["-mavx2", "-mfma"]], ids=["baseline", "avx2"])
def test_release_code_is_the_plain_vector_code(tmp_path: Path, isa: list[str]) -> None:
    code = functions(tmp_path, ["-O3", "-DNDEBUG", *isa])
    assert any("mulps" in line for line in code["scale_by_hand"])
    assert code["scale_relaxed"] == code["scale_by_hand"]
    assert code["copy_relaxed"] == code["copy_by_hand"]


def test_thread_sanitizer_sees_atomics(tmp_path: Path) -> None:
    code = functions(tmp_path, ["-O1", "-fsanitize=thread"])
    assert not any("mulps" in line for line in code["scale_relaxed"])
    assert code["scale_relaxed"] != code["scale_by_hand"]
    names = subprocess.run(["nm", "-u", str(tmp_path / "relaxed.o")], check=True, capture_output=True).stdout.decode()
    assert "__tsan_atomic32_load" in names and "__tsan_atomic32_store" in names
