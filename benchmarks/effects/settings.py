"""What the effect table switches on and off: every pass, table dtype, engine and session setting.

A setting has two pairs of ways to convert and serve a model: **alone** (it over ``OFF``) and **among all** (``ON``, all
that fits together, against all but it). Where it can't stand alone, both sides have what it needs, and ``needs`` says
so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

ALONE, AMONG = "alone", "among all"
CONTEXTS = (ALONE, AMONG)
# Requests: rows of as many users; one user beside as many candidates; small requests that come together.
ROWS, ONE_USER, BURST = "rows", "one user", "burst"

SIMPLE = frozenset(
    {
        "prune_training", "externalise_vocabularies", "normalise", "fuse_lookups", "lookups_first", "drop_unused_files",
        "pack_inputs",
    }
)  # fmt: skip
_TABLES, _SPLIT, _DENSE = "compress_tables", "split_user_item", "dense_engine"
_PLACE, _MERGE = "place_devices", "merge_transfers"
# Of the accuracy gate: scores of models that were trained for a moment move further, and times are what counts here.
WIDE_LIMITS = {"max_dp": 0.2, "max_bias": 0.05}
ON_BY_DEFAULT, ASKED_FOR = "on", "if asked for"
ALWAYS = ("externalise_tables", "externalise_embeddings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """A conversion. passes: of those that can be disabled, the ones that are not; table_dtype, dense: as in
    ``tfctr.convert``. auto: as it comes, without any option.
    """

    passes: frozenset[str] = frozenset()
    table_dtype: str = "fp32"
    dense: str = "tensorflow"
    auto: bool = False

    @property
    def two_devices(self) -> bool:
        return _PLACE in self.passes

    def arguments(self, user_features: tuple[str, ...], cache: str) -> dict[str, Any]:
        """For ``tfctr.convert``. cache: folder of the compile cache."""
        from export.dense.options import DenseOptions

        dense = DenseOptions(dense="auto" if self.auto else self.dense, cache_dir=cache)
        if self.auto:
            return {"dense": dense}
        everything = SIMPLE | {_TABLES, _SPLIT, _DENSE, _PLACE, _MERGE}
        return {
            "dense": dense,
            "disable": tuple(sorted(everything - self.passes)),
            "table_dtype": self.table_dtype,
            "user_features": user_features if _SPLIT in self.passes else (),
            **(WIDE_LIMITS if self.table_dtype != "fp32" else {}),
            "device_map": {"sparse": "/CPU:0", "dense": "/CPU:1"} if self.two_devices else {},
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A build and how it is served. build: None for the SavedModel itself. stock: by a TensorFlow ``Session`` instead
    of ours. copy: another session of the same.
    """

    build: Build | None = Build()
    threads: int = 1
    table_memory: str = "mapped"
    executors: int = 1
    batching: bool = False
    stock: bool = False
    copy: int = 0


@dataclasses.dataclass(frozen=True)
class Pair:
    """The setting on and off. needs: what both sides have or lack for its sake, in words."""

    on: Served
    off: Served
    needs: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One row. what: the pass, engine or option; variant: of it. kind: "pass", "engine", "session" or "whole".
    says: one sentence. by_default: ``ON_BY_DEFAULT``, ``ASKED_FOR`` or "". alone, among: None with ``why_not`` where
    there is no such pair. passes: those whose report tells whether the setting did anything. wall_only: CPU seconds
    can't show what it does.
    """

    what: str
    variant: str = ""
    kind: str = "pass"
    says: str
    by_default: str = ""
    request: str = ROWS
    alone: Pair | None = None
    among: Pair | None = None
    why_not: str = ""
    passes: tuple[str, ...] = ()
    wall_only: bool = False

    @property
    def name(self) -> str:
        return f"{self.what} ({self.variant})" if self.variant else self.what

    def pair(self, context: str) -> Pair | None:
        return self.alone if context == ALONE else self.among


# Without prune_training every variable counts as written, by its restore op, so that no other pass can do anything: it
# is on in both bases.
_PRUNE = "prune_training"
OFF = Build(passes=frozenset({_PRUNE}))
ON = Build(passes=SIMPLE | {_TABLES, _SPLIT, _DENSE}, table_dtype="fp16", dense="auto")
_ON_DEVICES = dataclasses.replace(ON, passes=ON.passes - {_DENSE} | {_PLACE, _MERGE}, dense="tensorflow")


def settings() -> tuple[Setting, ...]:
    """All rows, in the order of the passes."""
    return (*_wholes(), *_passes(), *_sessions())


def _with(build: Build, *passes: str, **fields: Any) -> Served:
    return Served(build=dataclasses.replace(build, passes=build.passes | set(passes), **fields))


def _without(build: Build, *passes: str, **fields: Any) -> Served:
    return Served(build=dataclasses.replace(build, passes=build.passes - set(passes), **fields))


def _wholes() -> list[Setting]:
    original, off, on = Served(build=None), Served(build=OFF), Served(build=ON)
    return [
        Setting(
            what="instead of TensorFlow",
            kind="whole",
            says="`tfctr convert` without options, in `ServingSession`, against the SavedModel in stock TensorFlow (a "
            "`Session` callable).",
            alone=Pair(Served(build=Build(auto=True)), Served(build=None, stock=True)),
            why_not="it is a whole, not a setting",
        ),
        Setting(
            what="everything",
            kind="whole",
            says="All that fits on one device, with fp16 tables and `--dense auto`, against `prune_training` alone.",
            alone=Pair(on, off),
            why_not="it is all there is",
        ),
        Setting(
            what="as it comes",
            kind="whole",
            says="`tfctr convert` without options, where `auto` decides, against the SavedModel in the same session.",
            alone=Pair(Served(build=Build(auto=True)), original),
            among=Pair(Served(build=Build(auto=True)), on, "against everything on"),
        ),
        Setting(
            what="the same again",
            kind="whole",
            says="A second session of the same bundle against the first: what this machine calls equal.",
            alone=Pair(dataclasses.replace(off, copy=1), off),
            among=Pair(dataclasses.replace(on, copy=1), on),
        ),
    ]


def _passes() -> list[Setting]:
    return [
        Setting(
            what=_PRUNE,
            by_default=ON_BY_DEFAULT,
            says="Leaves optimizer slots and restore ops out; without it every variable counts as written, and nothing "
            "else can be done.",
            alone=Pair(Served(build=OFF), Served(build=Build())),
            among=Pair(Served(build=ON), _without(ON, _PRUNE)),
            passes=(_PRUNE,),
        ),
        Setting(
            what="externalise_tables",
            by_default=ON_BY_DEFAULT,
            says="Variables become mapped files and constants; always on, so off is the SavedModel itself.",
            alone=Pair(Served(build=OFF), Served(build=None), "off is the SavedModel itself"),
            why_not="a bundle can't be made without it",
            passes=("externalise_tables",),
        ),
        Setting(
            what="externalise_embeddings",
            by_default=ON_BY_DEFAULT,
            says="Embedding variables become hash files; always on; these models have none.",
            alone=Pair(Served(build=OFF), Served(build=None), "off is the SavedModel itself"),
            why_not="a bundle can't be made without it",
            passes=("externalise_embeddings",),
        ),
        _simple("externalise_vocabularies", "Static hash tables become mapped files; these models have none."),
        _simple("normalise", "Takes out identities and waits that say nothing."),
        Setting(
            what="fuse_lookups",
            by_default=ON_BY_DEFAULT,
            says="All embedding lookups of a call become a few operations.",
            alone=Pair(_with(OFF, "fuse_lookups"), Served(build=OFF)),
            among=Pair(
                _without(ON, _TABLES, table_dtype="fp32"),
                _without(ON, _TABLES, "fuse_lookups", table_dtype="fp32"),
                "compress_tables needs it: both sides have fp32 tables",
            ),
            passes=("fuse_lookups",),
        ),
        *(_tables(dtype) for dtype in ("fp16", "bf16", "int8")),
        Setting(
            what=_SPLIT,
            variant="--user-features",
            by_default=ASKED_FOR,
            says="Computes what depends on the user once per request instead of once per candidate.",
            request=ONE_USER,
            alone=Pair(_with(OFF, _SPLIT), Served(build=OFF)),
            among=Pair(Served(build=ON), _without(ON, _SPLIT)),
            passes=(_SPLIT,),
        ),
        _simple("lookups_first", "Nothing of the tower starts before the lookups are done."),
        *_devices(),
        *_engines(),
        _simple("drop_unused_files", "Leaves out table files that nothing reads; it changes the disk, not the call."),
        _simple("pack_inputs", "A request reaches the graph as three tensors instead of one per input."),
    ]


def _simple(name: str, says: str) -> Setting:
    return Setting(
        what=name,
        says=says,
        by_default=ON_BY_DEFAULT,
        alone=Pair(_with(OFF, name), Served(build=OFF)),
        among=Pair(Served(build=ON), _without(ON, name)),
        passes=(name,),
    )


def _tables(dtype: str) -> Setting:
    size = {"fp16": "half the bytes", "bf16": "half the bytes", "int8": "about a third of the bytes"}[dtype]
    fused = _with(OFF, "fuse_lookups")
    wide = _without(ON, _TABLES, table_dtype="fp32")
    return Setting(
        what=_TABLES,
        variant=f"--table-dtype {dtype}",
        by_default=ASKED_FOR,
        says=f"Tables in {size}, where the accuracy gate passes (its limits are widened here).",
        alone=Pair(
            _with(OFF, "fuse_lookups", _TABLES, table_dtype=dtype), fused, "needs fuse_lookups: both sides have it"
        ),
        among=Pair(Served(build=dataclasses.replace(ON, table_dtype=dtype)), wide),
        passes=(_TABLES,),
    )


def _devices() -> list[Setting]:
    one = _without(ON, _DENSE, dense="tensorflow")
    no_engine = "an engine takes no packed tensors: both sides have the tower on TensorFlow"
    return [
        Setting(
            what=_PLACE,
            variant="--device-map",
            by_default=ASKED_FOR,
            says="Lookups on one device, the tower on another; here two logical CPU devices, which can only cost.",
            alone=Pair(_with(OFF, _PLACE), Served(build=OFF)),
            among=Pair(
                _without(_ON_DEVICES, _MERGE),
                one,
                f"{no_engine}, and merge_transfers, which needs it, is off",
            ),
            passes=(_PLACE,),
        ),
        Setting(
            what=_MERGE,
            variant="--device-map",
            by_default=ASKED_FOR,
            says="What crosses between two devices does so as one tensor each way; here the devices are logical CPUs.",
            alone=Pair(_with(OFF, _PLACE, _MERGE), _with(OFF, _PLACE), "needs place_devices: both sides have it"),
            among=Pair(Served(build=_ON_DEVICES), _without(_ON_DEVICES, _MERGE), no_engine),
            passes=(_MERGE,),
        ),
    ]


def _engines() -> list[Setting]:
    plain = _without(ON, _DENSE, dense="tensorflow")
    return [
        Setting(
            what=_DENSE,
            variant="--dense auto",
            kind="engine",
            by_default=ON_BY_DEFAULT,
            says="The default: an engine runs the dense tower where a conversion measures it to be clearly faster.",
            alone=Pair(_with(OFF, _DENSE, dense="auto"), Served(build=OFF)),
            among=Pair(Served(build=ON), plain),
            passes=(_DENSE,),
        ),
        Setting(
            what=_DENSE,
            variant="--dense openvino",
            kind="engine",
            by_default=ASKED_FOR,
            says="OpenVINO runs the dense tower in fp32, asked for by name.",
            alone=Pair(_with(OFF, _DENSE, dense="openvino"), Served(build=OFF)),
            among=Pair(Served(build=dataclasses.replace(ON, dense="openvino")), plain),
            passes=(_DENSE,),
        ),
        Setting(
            what=_DENSE,
            variant="--dense tensorrt",
            kind="engine",
            by_default=ASKED_FOR,
            says="TensorRT runs the dense tower on an NVIDIA GPU.",
            why_not="needs an NVIDIA GPU, and this table is made on a CPU (docs/gpu.md)",
        ),
    ]


def _sessions() -> list[Setting]:
    def both(what: str, says: str, request: str = ROWS, **fields: Any) -> Setting:
        alone, among = (Pair(Served(build=build, **fields), Served(build=build)) for build in (OFF, ON))
        return Setting(
            what=what,
            kind="session",
            by_default=ASKED_FOR,
            says=says,
            request=request,
            alone=alone,
            among=among,
            wall_only="table_memory" not in fields,
        )

    return [
        both("intra_op_threads=2", "Two threads for the kernels of one request.", threads=2),
        both(
            'table_memory="huge_pages"',
            "Tables copied to huge pages of the process instead of mapped.",
            table_memory="huge_pages",
        ),
        both("executors=2", "Two requests run at once instead of one after the other.", BURST, executors=2),
        both("batching", "Small requests that wait run together as one.", BURST, batching=True),
    ]
