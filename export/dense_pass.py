"""The dense tower becomes an engine: a form of each signature in which its nodes are one ``TfctrDenseEngine``.

The tower lies between the lookups' results and the outputs. It is cut out of every form (also of the one with user
features once per user), frozen, translated to ONNX and compared with TensorFlow; then OpenVINO or TensorRT runs it,
judged on the samples at the tower's boundary. `auto` takes the fastest provider that runs on this machine.

The forms of before stay as they are: they are the fallback, and what the engine is compared with. Whatever fails keeps
a tower on TensorFlow, with the reason. See dense.md.
"""

from __future__ import annotations

from export.dense.options import TENSORFLOW, DenseOptions, check_dense
from export.dense.run import run_forms
from graph_opt.item import GraphItem
from graph_opt.options import ConvertOptions
from graph_opt.report import Pass, PassOutcome, Refused
from tfctr.errors import StrictRefusal, TfctrError

__all__ = ["DENSE_PASS", "DenseOptions", "dense_pass"]

NAME = "dense_engine"
OPTIONS = (
    "--dense auto|tensorflow|openvino|tensorrt: what runs the tower; auto takes the fastest that runs on this machine",
    "--precision fp32|bf16|fp16: what it computes in; bf16 and fp16 only where the accuracy gate passes",
    "--clamp X|off: how far embeddings may reach where the tower is fp16",
    "--target sm80,sm89: GPUs that TensorRT plans are built for",
    "--max-dp X, --max-bias X, --max-auc-delta X: limits of the accuracy gate",
    "--cache-dir DIR: where exports and compiled engines are kept for the next conversion",
    "--dense-required: exit 4 where a tower stays on TensorFlow",
)
REASONS = {
    "asked": "stays on TensorFlow, as asked for (--dense tensorflow)",
    "taken": "the model has a signature {name} of its own",
    "devices": "what it reads is packed for {device} (--device-map), and an engine takes the tensors themselves: "
    "convert without a device map, engines need none",
    "stays": "stays on TensorFlow: {reason}",
}
EXAMPLE = """\
before  S:        lookups [B, 1600], dense [B, 13] -> MatMul, BiasAdd, Relu, MatMul, ... -> Sigmoid -> score
after   S__dense: lookups [B, 1600], dense [B, 13] -> TfctrDenseEngine(openvino, fp32) -> score
"""
_DOES = "takes the dense tower out of TensorFlow: one engine op in a form of its own (--dense)"
_ORDER = "after all passes that make or place forms; before drop_unused_files, which numbers the engine's files"


def dense_pass(options: DenseOptions | None = None) -> Pass:
    """The pass for ``ConvertOptions.dense_passes``. Raises UsageError where the options can't be met (``check_dense``);
    the pass itself raises StrictRefusal where ``options.required`` and a tower stays on TensorFlow.
    """
    chosen = options or DenseOptions()
    check_dense(chosen)

    def run(item: GraphItem, convert_options: ConvertOptions) -> PassOutcome:
        return dense_engine(item, convert_options, chosen)

    return Pass(name=NAME, run=run, does=_DOES, order_reason=_ORDER)


def dense_engine(item: GraphItem, convert_options: ConvertOptions, options: DenseOptions) -> PassOutcome:
    """See the module docstring. ``details["dense"]``: form -> its entry for the manifest. ``details["cache"]``: remarks
    of the compile cache, as of a damaged entry or a folder that can't be used; they are among the notes too.
    """
    if options.dense == TENSORFLOW:
        refused = (Refused(what="dense towers", reason=REASONS["asked"]),)
        return PassOutcome(refused=refused, details={"dense": {}})
    try:
        outcomes, notes = run_forms(item, convert_options, options, REASONS)
    except Exception as error:  # of any kind: a pass that fails is undone, which is not what was required
        if not options.required or isinstance(error, TfctrError | OSError):
            raise
        raise StrictRefusal(f"--dense-required: {NAME} failed: {type(error).__name__}: {error}") from error
    left = [one for one in outcomes if one.entry["form"] is None]
    if options.required and (failed := [one for one in left if one.has_tower] or (left if left == outcomes else [])):
        raise StrictRefusal(
            f"--dense-required: {failed[0].form}: the dense tower stays on TensorFlow: {failed[0].reason}"
        )
    return PassOutcome(
        fired=len(outcomes) - len(left),
        refused=tuple(
            Refused(what=f"signature {one.form}", reason=REASONS["stays"].format(reason=one.reason)) for one in left
        ),
        notes=(*(one.note for one in outcomes if one not in left), *notes),
        details={"dense": {one.form: one.entry for one in outcomes}, "cache": notes},
        rewrites=tuple(one.form for one in outcomes if one not in left),
    )


DENSE_PASS = dense_pass(DenseOptions(dense=TENSORFLOW))
