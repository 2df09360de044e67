"""Names of the files and folders of a bundle, and of what a conversion leaves beside it while it runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

MODEL = "saved_model.pb"
MANIFEST = "assets.extra/tfctr_manifest.json"
REFRESH = "assets.extra/tfctr_refresh.zip"
FEATURES = "assets.extra/tfctr_features.json"  # of a plain SavedModel (bundle/input_features.py)
STORE_FOLDER = "assets/tfctr"
DELTA = "delta.json"
# Nodes of a bundle's graph that swap the overlays of its store: feed both placeholders (int64 [k], string [k]), run
# the node (op TfctrStoreOverlay).
OVERLAY_NODE = "tfctr/overlay"
OVERLAY_INDICES = "tfctr/overlay/indices"
OVERLAY_FILENAMES = "tfctr/overlay/filenames"
# Attribute of a node that a pass made: "pass", or "pass:rule" where the pass has several.
RULE_ATTR = "_tfctr_rule"
MODEL_NAMES = (MODEL, "saved_model.pbtxt", "saved_model.cpb")

# Names beside OUT start with a dot and are no numbers: a server that watches `model/` for versions ignores them.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.tfctr-(?P<kind>tmp|old)-(?P<pid>\d+)")


def temporary(out: Path, kind: str = "tmp") -> Path:
    """Where this process builds the bundle ("tmp"), or puts the folder that it replaces ("old")."""
    return out.with_name(f".{out.name}.tfctr-{kind}-{os.getpid()}")


def leftovers(out: Path) -> list[tuple[Path, str]]:
    """(path, "tmp" or "old") of what killed conversions to ``out`` left; those of live processes are not among them."""
    if not out.parent.is_dir():
        return []
    found = []
    for path in sorted(out.parent.iterdir()):
        match = _TEMPORARY.fullmatch(path.name)
        if match and match["name"] == out.name and not _alive(int(match["pid"])):
            found.append((path, match["kind"]))
    return found


def is_saved_model(folder: Path) -> bool:
    """Whether ``folder`` holds a saved model (bundles are saved models too)."""
    return folder.is_dir() and any((folder / name).is_file() for name in MODEL_NAMES)


def is_bundle(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
