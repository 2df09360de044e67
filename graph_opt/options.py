"""Options of a conversion, with units in the names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graph_opt.report import Pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleColumns:
    """What a samples file holds beside the inputs. labels: float32 [B]. request_ids: [B], equal for the rows of one
    request. None: the file has no such column.
    """

    labels: Any = None
    request_ids: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``convert`` does; every field has the default of the command line.

    signatures: those to optimise; None = all of the chosen MetaGraph (the others survive unoptimised).
    tags: of the MetaGraph; None = "serve", and an error where there are several.
    disable: names of passes to leave out (``tfctr passes`` lists them).
    extra_passes: passes of the user's own, run after the lookups are fused and before inputs are packed.
    samples_path: file of inputs (.npz or .jsonl) to compare outputs on, instead of generated ones.
    label: column of that file that holds labels, so it is no input. label_output: the output they belong to; None =
    the only one with one number per row.
    report_path: where the HTML report goes, with a first timing; None: nowhere.
    read_samples: reads that file for a signature's info: arrays by input name, without the columns of labels and
    request ids. read_sample_columns: those two, as :class:`SampleColumns`. ``tfctr.convert`` sets both.
    op_libraries: libraries with the model's own custom ops, loaded before anything else.
    strict: raise StrictRefusal, and write nothing, where a pass raises, breaks the graph or a lookup fails its proof.
    require_fused: shell patterns; StrictRefusal unless every lookup whose name matches was fused and each pattern
    matches one.
    force: replace an existing output folder (see ``tfctr.bundle.writer``).
    verify_passes: check the graph between passes. dense_limit_bytes: dense variables above it become table files
    instead of constants. sample_rows: rows of generated inputs. seed: of generated inputs and probes.
    user_features: shell patterns of the features (or inputs) that are the same for all candidates of a request; they
    are computed once per user. user_features_from_samples: find them: those that do not vary over the rows of the
    samples (of each request, where ``request_column`` names the column of the file that tells requests apart).
    device_map: "sparse" and "dense" -> device string; empty: no device is set. force_placement: devices that the model
    sets are replaced by it too.
    table_dtype: how fused tables are stored: "fp32" (as they are), "fp16", "bf16" or "int8" (with a scale per row); the
    others only where the accuracy gate passes. max_dp, max_bias, max_auc_delta: limits of the gate; None = the
    defaults of ``graph_opt.gate``.
    dense_passes: passes that take the dense tower out of TensorFlow, run when all other forms are made and before files
    are dropped and inputs packed; ``export.dense_pass.dense_pass`` makes one (``tfctr.convert`` sets it).
    only_lookups: names of lookups or gathers that may be fused; None = all. only_rewrites: the same for the rewrites
    that a pass names in ``PassOutcome.rewrites``. ``tfctr bisect`` narrows both.
    """

    signatures: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    extra_passes: tuple[Pass, ...] = ()
    samples_path: Path | str | None = None
    label: str = "label"
    label_output: str | None = None
    report_path: Path | str | None = None
    op_libraries: tuple[Path | str, ...] = ()
    read_samples: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    read_sample_columns: Callable[[Mapping[str, Any]], SampleColumns] | None = None
    strict: bool = False
    require_fused: tuple[str, ...] = ()
    force: bool = False
    verify_passes: bool = True
    dense_limit_bytes: int = 16 << 20
    sample_rows: int = 32
    seed: int = 1
    user_features: tuple[str, ...] = ()
    user_features_from_samples: bool = False
    request_column: str = ""
    device_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    force_placement: bool = False
    table_dtype: str = "fp32"
    max_dp: float | None = None
    max_bias: float | None = None
    max_auc_delta: float | None = None
    dense_passes: tuple[Pass, ...] = ()
    only_lookups: frozenset[str] | None = None
    only_rewrites: frozenset[str] | None = None

    def __post_init__(self) -> None:
        # One pattern given as text is meant as one pattern, not as its letters.
        if isinstance(self.user_features, str):
            object.__setattr__(self, "user_features", (self.user_features,))

    def wants(self, rewrite: str) -> bool:
        """Whether a pass may do the rewrite of this name (``only_rewrites``)."""
        return self.only_rewrites is None or rewrite in self.only_rewrites
