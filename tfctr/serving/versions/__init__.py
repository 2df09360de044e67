"""Models, their versions and labels: what is on disk, what is loaded, which one answers."""

from tfctr.serving.versions.lease import Lease
from tfctr.serving.versions.manager import ModelManager
from tfctr.serving.versions.spec import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    All,
    Latest,
    ModelSpec,
    ModelStatus,
    Specific,
    Traffic,
    VersionStatus,
)

__all__ = [
    "AVAILABLE",
    "END",
    "LOADING",
    "START",
    "UNLOADING",
    "All",
    "Latest",
    "Lease",
    "ModelManager",
    "ModelSpec",
    "ModelStatus",
    "Specific",
    "Traffic",
    "VersionStatus",
]
