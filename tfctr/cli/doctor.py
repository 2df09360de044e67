"""`tfctr doctor`: what tfctr finds on this machine, and what to do about what is missing."""

import argparse
import importlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from tfctr.core import library
from tfctr.version import __version__

PACKAGES = (
    ("openvino", "openvino", "dense tower on CPU"),
    ("onnxruntime", "onnxruntime", "referee for exported towers"),
    ("tensorrt", "tensorrt", "dense tower on NVIDIA data-centre GPUs: requirements-gpu.txt"),
    ("tensorrt_rtx", "tensorrt_rtx", "builds engines for RTX GPUs, without one too"),
    ("pyarrow", "pyarrow", "rows of embedding tables from Parquet files"),
)
ENGINES = ("openvino", "tensorrt")


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis. `status`: ok, missing (optional, tfctr runs without it) or broken."""

    name: str
    status: str
    value: str
    note: str = ""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check Python, TensorFlow, the instruction set, engine providers and the op library",
        description="Checks the installation and prints what it finds. Ends with 1 when something tfctr cannot run "
        "without is broken; optional engine providers may be missing.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    findings = diagnose()
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings)
    return 1 if any(finding.status == "broken" for finding in findings) else 0


def diagnose() -> list[Finding]:
    """Returns all findings; loads TensorFlow, the op library and the providers to see that they do load."""
    return [
        Finding("tfctr", "ok", __version__, str(Path(library.__file__).resolve().parent.parent)),
        Finding("python", "ok", platform.python_version(), platform.platform()),
        _tensorflow(),
        _op_library(),
        _native_module(),
        instruction_set(),
        *(package(name, module, use) for name, module, use in PACKAGES),
        *(provider(name) for name in ENGINES),
    ]


def _tensorflow() -> Finding:
    try:
        import tensorflow as tf
    except Exception as error:
        return Finding("tensorflow", "broken", "does not import", _first_line(error))
    gpus = len(tf.config.list_physical_devices("GPU"))
    return Finding("tensorflow", "ok", tf.__version__, f"{gpus} GPU(s)")


def _op_library() -> Finding:
    try:
        built = library.load().tfctr_version()
    except Exception as error:
        return Finding("op library", "broken", "does not load", _first_line(error))
    ours, tensorflow = built.tfctr.numpy().decode(), built.tensorflow.numpy().decode()
    value = f"tfctr {ours}, built with TensorFlow {tensorflow}"
    if ours != __version__:
        return Finding("op library", "broken", value, f"does not belong to tfctr {__version__}: rebuild or reinstall")
    return Finding("op library", "ok", value, str(library.OPS_LIBRARY))


def _native_module() -> Finding:
    try:
        module = library.native()
    except Exception as error:
        return Finding("executor", "broken", "does not load", _first_line(error))
    return Finding("executor", "ok", Path(str(module.__file__)).name)


def instruction_set() -> Finding:
    """Says which kernels run here (the library decides), and whether TFCTR_ISA asks for one this CPU lacks."""
    try:
        module = library.native()
        detected = module.detected_isa()
    except Exception as error:
        return Finding("instruction set", "broken", "unknown", f"the executor does not load: {_first_line(error)}")
    forced = os.environ.get("TFCTR_ISA", "")
    try:
        used = module.isa_name()
    except ValueError as error:
        return Finding("instruction set", "broken", forced, _first_line(error))
    note = (
        f"forced by TFCTR_ISA; this CPU has {detected}" if forced else "the best this CPU has; TFCTR_ISA forces another"
    )
    return Finding("instruction set", "ok", used, note)


def package(name: str, module_name: str, use: str) -> Finding:
    """Imports one package that engines need; that it cannot be imported is no fault of tfctr's installation."""
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            return Finding(name, "missing", "not installed", use)
        return Finding(name, "missing", "does not import", _first_line(error))
    except Exception as error:  # a package's own start-up may fail in any way; the finding names it
        return Finding(name, "missing", "does not import", _first_line(error))
    return Finding(name, "ok", str(getattr(module, "__version__", "installed")), use)


def provider(name: str) -> Finding:
    """Whether the dense towers of bundles can run on this provider here, and what it would compute in."""
    from tfctr.engines import isa, providers, spec

    try:
        reason = providers.why_not(name)
        if not reason:
            providers.load(name)
    except Exception as error:  # whatever keeps it from running; the finding names it
        reason = _first_line(error)
    if reason:
        return Finding(f"provider {name}", "missing", "does not run here", reason)
    if name == "tensorrt":
        return Finding(f"provider {name}", "ok", "runs here", ", ".join(spec.PRECISIONS[name]))
    bf16 = (
        "fp32, bf16"
        if isa.supports_bf16()
        else f"fp32; bf16 needs avx512_bf16 or amx_bf16, this CPU has {isa.cpu_isa()}"
    )
    return Finding(f"provider {name}", "ok", "runs here", bf16)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "missing": "yellow", "broken": "red"}
    table = Table(box=None, pad_edge=False)
    for header in ("what", "status", "found", "note"):
        table.add_column(header, overflow="fold")
    for finding in findings:
        status = Text(finding.status, style=colours[finding.status])
        table.add_row(Text(finding.name), status, Text(finding.value), Text(finding.note))
    Console().print(table)
