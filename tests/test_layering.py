"""Who may import or include whom (CONTRIBUTING.md, "Layers"). Reads the sources only; nothing is imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A package may import its own rank and lower ones.
RANKS = {
    "tfctr.version": 0,
    "tfctr.errors": 0,
    "tfctr.bundle": 1,
    "tfctr.core": 1,
    "tfctr.engines": 1,
    "tfctr.profiling": 1,
    "tfctr.embedding": 2,
    "tfctr.keras": 2,
    "tfctr.data": 2,
    "tfctr.serving": 3,
    "tfctr.loadtest": 4,
    "tfctr.cli": 5,
}
OFFLINE = ("graph_opt", "export")
GRAPH_OPT_MAY = {"tfctr.core", "tfctr.bundle", "tfctr.errors", "tfctr.version", "tfctr.profiling"}
# What users import: above every layer, so no layer may import it (except the command, which is a user).
FACE = {"tfctr", "tfctr.passes"}

# C++ folder of tfctr/core -> folders whose headers it may include; those of TENSORFLOW_FREE know no TensorFlow.
CPP_MAY = {
    "storage": {"storage"},
    "lookup": {"lookup", "storage"},
    "engines": {"engines", "storage"},
    "embedding": {"embedding", "lookup", "storage"},
    "openvino": {"openvino", "engines", "storage"},
    "profiling": {"profiling"},
    "wire": {"wire"},
    "serving": {"serving", "profiling"},
    "ops": {"ops", "embedding", "lookup", "engines", "storage"},
    "kernels": {"kernels", "embedding", "lookup", "engines", "profiling", "storage"},
    "runtime": {"runtime", "kernels", "embedding", "lookup", "engines", "profiling", "serving", "storage", "wire"},
}
TENSORFLOW_FREE = {"storage", "lookup", "engines", "embedding", "openvino", "profiling", "wire", "serving"}


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute module name) of every import, inside functions too, save those under TYPE_CHECKING."""
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + (1 if is_package else 0)
                base = ".".join([*parents[:keep], *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def package_of(name: str) -> str:
    """`tfctr.core.library.load` -> `tfctr.core`; `tfctr.convert` (an attribute of the face) -> `tfctr`."""
    if name == "tfctr" or name.startswith("tfctr."):
        two = ".".join(name.split(".")[:2])
        return two if two in RANKS or two in FACE else "tfctr"
    return name.split(".", maxsplit=1)[0]


def complaint(importer: str, imported: str) -> str | None:
    """Returns why package `importer` may not import package `imported`; None if it may."""
    ours = imported in RANKS or imported in FACE or imported in OFFLINE
    if not ours or importer == imported:
        return None
    if importer == "graph_opt":
        return None if imported in GRAPH_OPT_MAY else f"graph_opt may import {sorted(GRAPH_OPT_MAY)} only"
    if importer == "export":
        return None if imported in GRAPH_OPT_MAY | {"graph_opt", "tfctr.engines"} else "export is below the rest"
    if importer in FACE or importer == "tfctr.cli":
        return None
    if imported in OFFLINE:
        return "what serves must not need the offline part"
    if imported in FACE:
        return "import the module that defines it, not the package's face"
    if RANKS[imported] > RANKS[importer]:
        return "a layer may import its own rank and lower ones only"
    return None


def python_violations() -> list[str]:
    found = []
    for top in ("tfctr", *OFFLINE):
        for path in sorted((ROOT / top).rglob("*.py")):
            relative = path.relative_to(ROOT)
            parts = list(relative.with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            module = ".".join(parts)
            importer = package_of(module)
            assert importer in RANKS or importer in FACE or importer in OFFLINE, f"{relative}: give it a rank here"
            for line, name in imports(path.read_text(), module, path.name == "__init__.py"):
                why = complaint(importer, package_of(name))
                if why:
                    found.append(f"{relative}:{line}: imports {name}: {why}")
    return found


def test_python_layers():
    assert python_violations() == []


def test_face_is_lazy():
    """`import tfctr` at module level pulls in neither the offline part nor serving."""
    tree = ast.parse((ROOT / "tfctr/__init__.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for node in top for _, name in imports(ast.unparse(node), "tfctr", is_package=True)]
    assert [
        name for name in names if package_of(name) not in {"tfctr.core", "tfctr.version", "importlib", "typing"}
    ] == []


def test_cpp_layers():
    found = []
    for folder, allowed in CPP_MAY.items():
        for path in sorted((ROOT / "tfctr/core" / folder).glob("*")):
            if path.suffix not in {".cc", ".h"}:
                continue
            where = path.relative_to(ROOT)
            for header in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
                if header.startswith("tfctr/core/"):
                    rest = header.removeprefix("tfctr/core/")
                    if "/" in rest and rest.split("/")[0] not in allowed:
                        found.append(f"{where}: includes {header}; {folder}/ may include {sorted(allowed)}")
                elif folder in TENSORFLOW_FREE and header.split("/")[0] in {
                    "tensorflow",
                    "tsl",
                    "xla",
                    "absl",
                    "Eigen",
                }:
                    found.append(f"{where}: includes {header}; {folder}/ knows no TensorFlow")
                elif folder != "runtime" and header.split("/")[0] in {"pybind11", "Python.h"}:
                    found.append(f"{where}: includes {header}; only runtime/ knows Python")
    assert found == []


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("tfctr.serving", "graph_opt", False),
        ("tfctr.serving", "tfctr.core", True),
        ("tfctr.core", "tfctr.serving", False),
        ("graph_opt", "tfctr.serving", False),
        ("graph_opt", "tfctr", False),
        ("graph_opt", "export", False),
        ("graph_opt", "tfctr.errors", True),
        ("tfctr.data", "tfctr.bundle", True),
        ("tfctr.cli", "graph_opt", True),
        ("tfctr.errors", "tfctr.core", False),
    ],
)
def test_rules_can_fail(importer, imported, allowed):
    assert (complaint(importer, imported) is None) == allowed


def test_imports_are_seen_wherever_they_are():
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import graph_opt.options
def f():
    from tfctr.serving import session
    from . import sibling
"""
    assert [name for _, name in imports(source, "tfctr.bundle.reader")] == [
        "typing.TYPE_CHECKING",
        "tfctr.serving.session",
        "tfctr.bundle.sibling",
    ]
