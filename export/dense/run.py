"""The work of the pass: every form's tower exported, then an engine chosen for each, then the forms written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.dense.options import TENSORFLOW, DenseOptions
from export.reasons import CannotExport
from graph_opt.item import DenseForm, GraphItem
from graph_opt.options import ConvertOptions
from tfctr.errors import TfctrError

if TYPE_CHECKING:
    from export.cache import CompileCache
    from export.dense.built import Built
    from export.dense.choose import Choice
    from export.dense.tower import ExportedTower
    from export.samples import BoundarySamples, Sampler

NO_CACHE = "off"
PACK_OP = "TfctrPackRows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormOutcome:
    """What became of one form. entry: for the manifest; its "form" is None where the tower stays on TensorFlow, and
    "reason" says why. has_tower: whether there is one at all.
    """

    form: str
    entry: Mapping[str, Any]
    has_tower: bool = True

    @property
    def reason(self) -> str:
        return str(self.entry["reason"])

    @property
    def note(self) -> str:
        """One line for people."""
        entry = self.entry
        return f"{self.form}: {entry['provider']}, {entry['precision']}: {entry['form']}; {self.reason}"


def run_forms(
    item: GraphItem, convert_options: ConvertOptions, options: DenseOptions, reasons: Mapping[str, str]
) -> tuple[list[FormOutcome], list[str]]:
    """Adds a dense form beside every form of ``item`` whose tower an engine is to run.

    reasons: "taken" where a signature of that name is there ({name}), "devices" where what the tower reads is packed
    for another device ({device}). Returns the outcomes in the order of the forms,
    and remarks of the cache. Files that were made are removed where it raises.
    """
    known = len(item.files)
    try:
        return _run(item, convert_options, options, reasons)
    except BaseException:
        for file in item.files[known:]:
            if file.path is not None:
                file.path.unlink(missing_ok=True)
        raise


def forms_of(item: GraphItem) -> list[str]:
    """Forms that have no dense form yet: signatures, each followed by its split form."""
    found = []
    for name in item.optimise:
        found += [name, item.split[name].signature] if name in item.split else [name]
    return [form for form in found if form not in item.dense]


def _run(
    item: GraphItem, convert_options: ConvertOptions, options: DenseOptions, reasons: Mapping[str, str]
) -> tuple[list[FormOutcome], list[str]]:
    from export.dense.rewrite import dense_name

    forms = [form for form in forms_of(item) if convert_options.wants(form)]
    missing = options.stay or _missing()
    if missing or item.work_dir is None:
        reason = missing or "the model was only analysed"
        return [_left(form, options, reason) for form in forms], []
    from export.cache import CompileCache
    from export.samples import Sampler

    notes: list[str] = []
    outcomes: dict[str, FormOutcome] = {}
    towers: dict[str, ExportedTower] = {}
    choices: dict[str, Choice] = {}
    with CompileCache(
        _root(options), options.cache_limit_bytes, notes.append, label=str(item.source_path or "")
    ) as cache:
        with Sampler(item, convert_options) as sampler:
            for form in forms:
                if dense_name(form) in item.signatures:
                    outcomes[form] = _left(form, options, reasons["taken"].format(name=dense_name(form)))
                    continue
                if _is_packed_for_a_device(item, form):
                    device = convert_options.device_map.get("dense", "")
                    outcomes[form] = _left(form, options, reasons["devices"].format(device=device))
                    continue
                made = _engine(item, form, sampler, options, cache)
                if isinstance(made, FormOutcome):
                    outcomes[form] = made
                else:
                    towers[form], choices[form] = made
        outcomes |= _write(item, towers, choices, convert_options, options)
    return [outcomes[form] for form in forms], notes


def _is_packed_for_a_device(item: GraphItem, form: str) -> bool:
    """Whether merge_transfers has been at work: the tower's inputs are slices of one tensor of words then."""
    from graph_opt.view import GraphView

    view = GraphView(item.graph_def)
    return any(view.node(name).op == PACK_OP for name in view.ancestors(item.fetches(form)))


def _missing() -> str:
    """Why nothing can be exported here; "" where it can."""
    import importlib

    for name in ("onnx", "tf2onnx", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{error.name or name} is not installed (pip install 'tfctr[export]')"
    return ""


def _root(options: DenseOptions) -> Path | None:
    from export.cache import default_root

    if options.cache_dir is None:
        return default_root()
    return None if str(options.cache_dir) == NO_CACHE else Path(options.cache_dir)


def _left(form: str, options: DenseOptions, reason: str, **more: Any) -> FormOutcome:
    from export.dense.entry import dense_entry

    has_tower = more.pop("has_tower", True)
    return FormOutcome(form=form, entry=dense_entry(options, reason=reason, **more), has_tower=has_tower)


def _engine(
    item: GraphItem, form: str, sampler: Sampler, options: DenseOptions, cache: CompileCache
) -> tuple[ExportedTower, Choice] | FormOutcome:
    """The tower of one form and what runs it; or why it stays."""
    from export.cut import NO_TOWER
    from export.dense.choose import choose
    from export.dense.reuse import reason_to_stay, reused
    from export.dense.tower import exported_tower
    from graph_opt.recognise.facts import Facts
    from graph_opt.view import GraphView

    options = reused(options, form)
    if options.dense == TENSORFLOW:
        return _left(form, options, reason_to_stay(options, form))
    facts = Facts(GraphView(item.graph_def))
    samples = _once(sampler)
    try:
        exported = exported_tower(item, form, facts, cache, lambda tower: [samples(tower).take(tower, 64)])
    except CannotExport as error:
        return _left(form, options, str(error), has_tower=not str(error).startswith(NO_TOWER))
    choice = choose(item, exported, lambda: samples(exported.tower), options, cache)
    if choice.built is not None and (before := (options.reuse or {}).get(form)):
        # Nothing was chosen here: what spoke for this engine is what was found at the conversion.
        choice = dataclasses.replace(choice, reason=str(before.get("reason") or choice.reason))
    if choice.built is None:
        return _left(form, options, choice.reason, exported=exported, choice=choice)
    return exported, choice


def _once(sampler: Sampler) -> Callable[[Any], BoundarySamples]:
    """Samples of a tower, run once per set of inputs."""
    known: dict[tuple[str, ...], BoundarySamples] = {}

    def samples(tower: Any) -> BoundarySamples:
        key = tuple(one.source for one in tower.inputs)
        if key not in known:
            known[key] = sampler.of(tower)
        return known[key]

    return samples


def _write(
    item: GraphItem,
    towers: Mapping[str, ExportedTower],
    choices: Mapping[str, Choice],
    convert_options: ConvertOptions,
    options: DenseOptions,
) -> dict[str, FormOutcome]:
    """Files, nodes and signatures. All towers were cut before: this changes the graph."""
    from export.dense.entry import dense_entry
    from export.dense.shared import DenseFiles

    files = DenseFiles(item)
    found = {}
    for form, exported in towers.items():
        choice = choices[form]
        assert choice.built is not None
        try:
            name, node, entries = _write_form(item, exported, choice, files, convert_options, options)
        except CannotExport as error:
            found[form] = _left(form, options, str(error), exported=exported)
            continue
        entry = dense_entry(options, exported=exported, choice=choice, form=name, files=entries)
        built = choice.built
        limits = built.gate.limits if built.gate is not None else None
        check = _check_provider(built)
        item.dense[form] = DenseForm(
            signature=name,
            node=node,
            provider=built.provider,
            precision=built.precision,
            limits=limits if check == built.provider else None,
            check_provider=check,
            check_precision=built.precision if check == built.provider else "fp32",
            details=entry,
        )
        found[form] = FormOutcome(form=form, entry=entry)
    return found


def _check_provider(built: Built) -> str:
    """What the final comparison runs the engine's node by, made ready: the provider, or where it does not run here its
    fallback; "" where that is TensorFlow, which runs no such node.
    """
    from tfctr.engines import providers

    for provider in (built.provider, built.fallback):
        if provider == TENSORFLOW or providers.why_not(provider):
            continue
        try:
            providers.load(provider)
        except TfctrError:  # installed, but broken: the entry's "check" says that nothing was run
            continue
        return provider
    return ""


def _write_form(
    item: GraphItem,
    exported: ExportedTower,
    choice: Choice,
    files: Any,
    convert_options: ConvertOptions,
    options: DenseOptions,
) -> tuple[str, str, Sequence[Mapping[str, Any]]]:
    """(signature, engine's node, entries of its files)."""
    from export.dense.rewrite import DenseWriter, dense_name
    from tfctr.engines.spec import EngineFile, EngineSpec

    built = choice.built
    assert built is not None
    writer = DenseWriter(item, exported.tower, convert_options.device_map.get("sparse", ""))
    indices = [files.add(exported.data, name, data) for _, name, data in built.files]
    paths = [item.files[index].path for index in indices]
    spec = EngineSpec(
        provider=built.provider,
        precision=built.precision,
        inputs=built.inputs,
        outputs=built.outputs,
        files=tuple(EngineFile(role, path) for (role, _, _), path in zip(built.files, paths, strict=True) if path),
        options=built.options,
        threads=options.threads,
        label=exported.tower.signature,
    )
    node = writer.write(spec, indices)
    entries = [
        {"role": role, "file": path.name if path else "", "index": index, "bytes": len(data)}
        for (role, _, data), index, path in zip(built.files, indices, paths, strict=True)
    ]
    return dense_name(exported.tower.signature), node, entries
