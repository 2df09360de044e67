"""What to do about a profile: rules, each a pure function from facts to one piece of advice or none.

Every rule names what it saw and an option of tfctr that would change it. A rule looks at the recording that is asked
about (the bundle, where there are two); thresholds are shares of its step.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Sequence

from tfctr.profiling.timeline import story
from tfctr.profiling.timeline.analysis import Analysis
from tfctr.profiling.timeline.grouping import feature_words
from tfctr.profiling.timeline.roles import DENSE, DENSE_OPS, ENGINE_OPS, FUSED_LOOKUPS, LOOKUP, STRING_OPS
from tfctr.profiling.timeline.words import number_words, percent_words, plural, size_words, time_words

_SPLIT_OPS = frozenset({"TfctrRowIds", "TfctrAddUserRows", "TfctrJoinUserRows"})
_STOCK_READS = frozenset(
    {"ResourceGather", "GatherV2", "SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"}
    | {"SparseSegmentSumWithNumSegments", "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments"}
)
MANY_LOOKUP_OPS, LOOKUP_SHARE = 20, 0.15
LEFT_SHARE = 0.05
OVERHEAD_SHARE = 0.3
DENSE_SHARE = 0.35
STRING_SHARE = 0.15
USER_ROWS, USER_SHARE = 8, 0.4
SCATTER_SHARE, SCATTER_STRETCHES = 0.5, 4
TABLE_SHARE = 0.3
CROSSINGS = 3
THREAD_ROWS, THREAD_SHARE = 256, 0.6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What the rules look at. tables_bytes: all tables of the bundle; cache_bytes: the machine's largest cache; None
    where they are not known. slower_engine: what the conversion measured of an engine that it did not take, or ""."""

    a: Analysis
    baseline: Analysis | None = None
    tables_bytes: int | None = None
    cache_bytes: int | None = None
    slower_engine: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """What the two recordings are called in sentences: by their form, by their path where that is the same."""
        mine = self.a.timeline
        other = self.baseline.timeline if self.baseline else mine
        if self.baseline is not None and other.form == mine.form and other.path != mine.path:
            return other.path, mine.path
        return story.form_words(other.form), story.form_words(mine.form)

    @property
    def bundle(self) -> bool:
        return self.a.timeline.form == "bundle"

    @property
    def path(self) -> str:
        return shlex.quote(self.a.timeline.path or ("bundle/" if self.bundle else "model/"))

    @property
    def model(self) -> str:
        """The SavedModel that a conversion would begin with."""
        if not self.bundle:
            return self.path
        stock = self.baseline is not None and self.baseline.timeline.form == "stock"
        return shlex.quote(self.baseline.timeline.path if stock and self.baseline else "model/")

    @property
    def new_bundle(self) -> str:
        """Where a conversion would write to."""
        if not self.bundle:
            return shlex.quote((self.a.timeline.path or "model").rstrip(os.sep) + "_bundle")
        return shlex.quote(self.a.timeline.path.rstrip(os.sep) + "_new") if self.a.timeline.path else "bundle_new/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """rule: its name; title: what to do; evidence: what the profile shows; then: what would change; command: of tfctr,
    as one would type it; weight: share of the step it is about, 0..1."""

    rule: str
    title: str
    evidence: str
    then: str
    command: str
    weight: float


Rule = Callable[[Facts], Advice | None]


def many_lookup_ops(f: Facts) -> Advice | None:
    share = f.a.role(LOOKUP)
    if f.bundle or (share.calls < MANY_LOOKUP_OPS and share.share < LOOKUP_SHARE) or not share.calls:
        return None
    of = f" of {plural(len(f.a.features), 'feature')} ({feature_words(f.a.features)})" if f.a.features else ""
    return Advice(
        rule="many_lookup_ops",
        title="Fuse the embedding lookups",
        evidence=f"{plural(share.calls, 'operation')}{of} take {percent_words(share.share)} of the step.",
        then="A conversion makes one operation out of all lookups that it can prove equal, and names those it can't.",
        command=f"tfctr convert {f.model} {f.new_bundle}",
        weight=share.share,
    )


def lookups_left(f: Facts) -> Advice | None:
    share, calls = f.a.share_of(_lookup_reads(f)), f.a.calls_of(_lookup_reads(f))
    if not f.bundle or share < LEFT_SHARE or not calls:
        return None
    return Advice(
        rule="lookups_left",
        title="See why lookups were left as they were",
        evidence=f"{plural(calls, 'stock lookup operation')} ({', '.join(sorted(_lookup_reads(f)))}) still take "
        f"{percent_words(share)} of the step of this bundle.",
        then="The list gives the reason for each; often a small change of the model lets it be fused.",
        command=f"tfctr inspect {f.path}",
        weight=share,
    )


def _lookup_reads(f: Facts) -> set[str]:
    """Kinds of stock operations that read tables here."""
    return {e.op for e in f.a.timeline.events if e.op in _STOCK_READS and f.a.roles.get(e.name) == LOOKUP}


def overhead_of_stock(f: Facts) -> Advice | None:
    o = f.a.overhead
    if f.bundle or o.share < OVERHEAD_SHARE:
        return None
    return Advice(
        rule="overhead_of_stock",
        title="Run fewer operations, and feed inputs in one piece",
        evidence=f"In {percent_words(o.share)} of the step no operation runs: {time_words(o.between_ns)} go between "
        f"{plural(f.a.ops, 'operation')}, {time_words(o.before_ns + o.after_ns)} into feeding and fetching.",
        then="A bundle has a few dozen operations and takes all numeric inputs as one packed tensor.",
        command=f"tfctr convert {f.model} {f.new_bundle}",
        weight=o.share,
    )


def overhead_of_bundle(f: Facts) -> Advice | None:
    o = f.a.overhead
    if not f.bundle or o.share < OVERHEAD_SHARE:
        return None
    return Advice(
        rule="overhead_of_bundle",
        title="Let requests share a run",
        evidence=f"In {percent_words(o.share)} of the step ({time_words(o.total_ns)}) no operation runs: a call costs "
        f"that much whatever it computes, and this one has {plural(f.a.timeline.rows, 'row')}.",
        then="Larger requests, or a server that runs waiting requests together, pay it once for many rows.",
        command=f"tfctr serve {f.path} --batching --max-delay-us 500",
        weight=o.share,
    )


def dense_engine(f: Facts) -> Advice | None:
    share = f.a.role(DENSE)
    if share.share < DENSE_SHARE or f.a.calls_of(ENGINE_OPS) or not f.a.calls_of(DENSE_OPS) or f.slower_engine:
        return None
    top = [str(one.key) for one in f.a.by_op if one.key in DENSE_OPS][:3]
    return Advice(
        rule="dense_engine",
        title="Give the dense tower to an engine",
        evidence=f"The dense part takes {percent_words(share.share)} of the step in "
        f"{plural(share.calls, 'operation')}, most of it in {', '.join(top)}.",
        then="OpenVINO runs a whole tower as one operation; outputs are compared before it is taken.",
        command=f"tfctr convert {f.model} {f.new_bundle} --dense openvino",
        weight=share.share,
    )


def engine_precision(f: Facts) -> Advice | None:
    share = f.a.share_of(ENGINE_OPS)
    if share < DENSE_SHARE or not str(f.a.timeline.machine.get("isa", "bf16")).endswith("bf16"):
        return None
    return Advice(
        rule="engine_precision",
        title="Try the tower in bf16",
        evidence=f"The engine takes {percent_words(share)} of the step.",
        then="This CPU computes in bf16 (AVX-512 BF16, AMX), about twice as fast; the accuracy gate decides on your "
        "samples.",
        command=f"tfctr convert {f.model} {f.new_bundle} --dense openvino --precision bf16 --samples rows.npz",
        weight=share / 2,
    )


def user_split(f: Facts) -> Advice | None:
    work = f.a.role(DENSE).share + f.a.role(LOOKUP).share
    split = f.a.calls_of(_SPLIT_OPS) or "__split" in f.a.timeline.signature
    if not f.bundle or f.a.timeline.rows < USER_ROWS or split or work < USER_SHARE or not f.a.role(LOOKUP).calls:
        return None
    return Advice(
        rule="user_split",
        title="Compute a user's part once, not once per candidate",
        evidence=f"Lookups and dense part take {percent_words(work)} of the step, for "
        f"{plural(f.a.timeline.rows, 'row')}. If these are candidates for one user, its part is the same in all.",
        then="Name the features of the user (wildcards are fine), or let samples tell which they are.",
        command=f"tfctr convert {f.model} {f.new_bundle} --user-features 'user_*'",
        weight=work / 2,
    )


def strings(f: Facts) -> Advice | None:
    share = f.a.strings_ns / f.a.step_ns if f.a.step_ns else 0.0
    if share < STRING_SHARE:
        return None
    used = [str(one.key) for one in f.a.by_op if one.key in STRING_OPS][:3]
    evidence = f"Operations on strings ({', '.join(used)}) take {percent_words(share)} of the step."
    if f.bundle:
        return Advice(
            rule="strings",
            title="Send numbers instead of strings",
            evidence=evidence,
            then="The list shows which inputs are strings and what they are turned into; ids that arrive as int64 "
            "need neither hashing nor a vocabulary.",
            command=f"tfctr inspect {f.path}",
            weight=share,
        )
    return Advice(
        rule="strings",
        title="Hash and look up strings many at a time",
        evidence=evidence,
        then="A bundle hashes the strings of a batch together, inside the lookup.",
        command=f"tfctr convert {f.model} {f.new_bundle}",
        weight=share,
    )


def large_tables(f: Facts) -> Advice | None:
    share = f.a.share_of(FUSED_LOOKUPS)
    if not f.bundle or share < TABLE_SHARE or f.tables_bytes is None or f.cache_bytes is None:
        return None
    if f.tables_bytes <= f.cache_bytes:
        return None
    return Advice(
        rule="large_tables",
        title="Store the tables smaller",
        evidence=f"Fused lookups take {percent_words(share)} of the step. The tables ({size_words(f.tables_bytes)}) "
        f"are larger than this machine's cache ({size_words(f.cache_bytes)}): rows come from memory.",
        then="fp16 halves what is read, int8 leaves about a third; the accuracy gate decides on your samples.",
        command=f"tfctr convert {f.model} {f.new_bundle} --table-dtype fp16 --samples rows.npz",
        weight=share / 2,
    )


def transfers(f: Facts) -> Advice | None:
    counts = f.a.timeline.transfers
    tensors, strings_ = sum(c.transfers for c in counts), sum(c.strings for c in counts)
    if tensors + strings_ < CROSSINGS:
        return None
    size = sum(c.bytes for c in counts)
    return Advice(
        rule="transfers",
        title="Send one tensor each way between the devices",
        evidence=f"{plural(tensors + strings_, 'tensor')} ({size_words(size)}) cross between devices in every call"
        + (f", {strings_} of them strings" if strings_ else "")
        + ".",
        then="place_devices puts lookups and strings on one side, merge_transfers packs what crosses.",
        command=f"tfctr convert {f.model} {f.new_bundle} --device-map sparse=/CPU:0,dense=/GPU:0",
        weight=f.a.role("transfer").share or 0.05,
    )


def scattered(f: Facts) -> Advice | None:
    s = f.a.spread
    if s is None or s.share < SCATTER_SHARE or s.stretches < SCATTER_STRETCHES:
        return None
    evidence = (
        f"Embedding work lies in {s.stretches} stretches over {percent_words(s.share)} of the step, with other "
        "operations in between."
    )
    if f.bundle:
        return Advice(
            rule="scattered",
            title="Run the lookups first",
            evidence=evidence,
            then="The pass lookups_first makes the dense part wait for them. It runs unless it was disabled, or has "
            "a reason in the report.",
            command="tfctr passes lookups_first",
            weight=s.share / 10,
        )
    return Advice(
        rule="scattered",
        title="Gather the scattered lookups",
        evidence=evidence,
        then="A conversion fuses them, and the pass lookups_first runs them before the dense part.",
        command=f"tfctr convert {f.model} {f.new_bundle}",
        weight=s.share / 10,
    )


def more_threads(f: Facts) -> Advice | None:
    work = f.a.share_of(FUSED_LOOKUPS | DENSE_OPS)
    if not f.bundle or f.a.timeline.threads != 1 or f.a.timeline.rows < THREAD_ROWS or work < THREAD_SHARE:
        return None
    return Advice(
        rule="more_threads",
        title="Give large requests more threads",
        evidence=f"Fused lookups and matrix products take {percent_words(work)} of the step, for "
        f"{number_words(f.a.timeline.rows)} rows on one thread; both divide a batch among threads.",
        then="One request becomes faster, but fewer run at a time: under load, one thread each serves more.",
        command=f"tfctr serve {f.path} --intra-op-threads 2",
        weight=work / 3,
    )


def no_lookups(f: Facts) -> Advice | None:
    if f.a.drawn is None or f.a.role(LOOKUP).calls:
        return None
    return Advice(
        rule="no_lookups",
        title="No embedding lookup was found",
        evidence=f"None of the {plural(f.a.ops, 'operation')} of this call reads an embedding table.",
        then="tfctr gains most on lookups; on such a model only the dense part can become faster. See what tfctr reads "
        "it as.",
        command=f"tfctr inspect {f.path}",
        weight=0.01,
    )


RULES: tuple[Rule, ...] = (
    many_lookup_ops,
    lookups_left,
    overhead_of_stock,
    overhead_of_bundle,
    dense_engine,
    engine_precision,
    user_split,
    strings,
    large_tables,
    transfers,
    scattered,
    more_threads,
    no_lookups,
)


def advise(facts: Facts) -> list[Advice]:
    """All that the rules say, the largest share of the step first."""
    if facts.a.drawn is None:
        return []
    found = [advice for rule in RULES if (advice := rule(facts)) is not None]
    return sorted(found, key=lambda advice: -advice.weight)


def by_command(found: Sequence[Advice]) -> list[tuple[str, list[Advice]]]:
    """Advice that one command answers, together; in order of the largest of each."""
    groups: dict[str, list[Advice]] = {}
    for one in found:
        groups.setdefault(one.command, []).append(one)
    return list(groups.items())
