"""Rules of operations that work entry by entry, and of those that are linear maps of each row."""

from __future__ import annotations

from graph_opt.rows.dims import ONE, Dim, Dims
from graph_opt.rows.kinds import Kind
from graph_opt.rows.site import Site, rule

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AsString", "Ceil", "CheckNumerics", "Cos",
    "Cosh", "Digamma", "Elu", "Erf", "Erfc", "Exp", "Expm1", "Floor", "Inv", "IsFinite", "IsInf", "IsNan",
    "LeakyRelu", "Lgamma", "Log", "Log1p", "LogicalNot", "Neg", "OnesLike", "PreventGradient", "Reciprocal",
    "RegexReplace", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Square", "StaticRegexReplace", "StaticRegexFullMatch",
    "StringLength", "StringLower", "StringStrip", "StringToHashBucket", "StringToHashBucketFast",
    "StringToHashBucketStrong", "StringToNumber", "StringUpper", "Tan", "Tanh", "ZerosLike", "Bucketize", "Invert",
)  # fmt: skip
BINARY = (
    "Add", "AddN", "AddV2", "ApproximateEqual", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "ClipByValue", "Div",
    "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd",
    "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "NotEqual", "Pow", "RealDiv", "SelectV2",
    "SquaredDifference", "StringJoin", "TruncateDiv", "TruncateMod", "Xdivy", "Xlogy", "Xlog1py",
    "BitwiseLeftShift", "LeftShift", "RightShift",
)  # fmt: skip
# op -> the input that is read entry by entry; the others say how (tables, defaults, patterns).
_KEYED = {"TfctrVocabFind": 1, "LookupTableFindV2": 1, "LookupTableFind": 1, "RegexFullMatch": 0}


@rule(*UNARY, *BINARY)
def _entry_by_entry(site: Site) -> Kind:
    return combine(site, list(range(len(site.kinds))))


@rule(*_KEYED)
def _keyed(site: Site) -> Kind:
    for index, kind in enumerate(site.kinds):
        site.require(index == _KEYED[site.node.op] or kind.fixed, "its table or default depends on the batch")
    return combine(site, [_KEYED[site.node.op]])


@rule("Select")
def _select(site: Site) -> Kind:
    """The condition may be a vector with one entry per row beside matrices."""
    ranks = {site.rank(k) for k in range(3)}
    site.require(len(ranks) == 1 or all(k.has_rows for k in site.kinds), "condition and values have different row axes")
    return combine(site, list(range(3))) if len(ranks) == 1 else site.made(like=site.row(1))


@rule("BiasAdd")
def _bias(site: Site) -> Kind:
    x = site.row(0)
    site.require(site.kinds[1].fixed and site.rank(0) >= 2, "the bias depends on the batch")
    site.require(site.node.attr["data_format"].s in (b"", b"NHWC"), "the bias is not on the last axis")
    return site.made(dims=x.dims, like=x)


def combine(site: Site, indices: list[int]) -> Kind:
    """The result of broadcasting the given inputs against each other, entry by entry."""
    kinds = [site.kinds[k] for k in indices]
    if any(k.name == "values" for k in kinds):
        return _values(site, kinds)
    site.require(all(k.name == "row" or k.fixed for k in kinds), "it computes with something that has no rows")
    rows = [k for k in kinds if k.name == "row"]
    ranks = {k.rank for k in rows}
    site.require(len(ranks) == 1 and None not in ranks, "it combines tensors whose row axes differ")
    rank = len(rows[0].dims or ())
    site.require(rank > 0 and len({(k.dims or ())[0] for k in rows}) == 1, "it combines tensors whose row axes differ")
    for kind, index in zip(kinds, indices, strict=True):
        if kind.name != "row":
            site.require(_fits(site, index, rank), "it computes with a constant that has a row axis")
    return site.made(dims=_broadcast([k.dims or () for k in kinds if k.name == "row"], rank), like=rows[0])


def _values(site: Site, kinds: list[Kind]) -> Kind:
    streams = [k for k in kinds if k.name == "values"]
    site.require(len({k.feature for k in streams}) == 1, "it combines the values of different features")
    for kind in kinds:
        static = kind.dims
        small = static is not None and all(d == ONE for d in static)
        site.require(
            kind.name == "values" or (kind.fixed and (small or not static)), "it mixes the values of a feature"
        )
    return streams[0]


def _fits(site: Site, index: int, rank: int) -> bool:
    """Whether a constant broadcasts against [rows, ...] without a say on the row axis."""
    dims = site.kinds[index].dims
    return dims is not None and (len(dims) < rank or (len(dims) == rank and dims[0] == ONE))


def _broadcast(all_dims: list[Dims], rank: int) -> Dims:
    found: list[Dim] = []
    for axis in range(rank):
        sizes = [dims[axis] for dims in all_dims]
        found.append(next((s for s in sizes if s != ONE), ONE))
    return tuple(found)


@rule("MatMul")
def _matmul(site: Site) -> Kind:
    x = site.row(0)
    attrs = site.node.attr
    site.require(site.kinds[1].fixed, "it multiplies by something that depends on the batch")
    site.require(site.rank(0) == 2 and not attrs["transpose_a"].b, "it works across rows")
    columns = site.facts.shape(site.output())
    return site.made(dims=None if columns is None else site.made(like=x).dims, like=x)


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(site: Site) -> Kind:
    a, b = site.kinds
    if a.name == "row" and b.name == "row":
        site.require(site.rank(0) == site.rank(1) >= 3, "it works across rows")
        site.require(a.dims is not None and b.dims is not None and a.dims[0] == b.dims[0], "row axes differ")
        return site.made(like=a)
    x, y = (0, 1) if a.name == "row" else (1, 0)
    site.row(x)
    site.require(site.kinds[y].fixed, "it multiplies by something that depends on the batch")
    shape = site.facts.shape(site.names[y])
    rank = site.rank(x)
    fits = shape is not None and (len(shape) < rank or (len(shape) == rank and (shape[0] == 1 or rank == 2)))
    site.require(fits, "it works across rows")
    site.require(rank >= 3 or (x == 0 and len(shape or []) == 2 and not site.node.attr["adj_x"].b), "across rows")
    return site.made(like=site.kinds[x])


@rule("Einsum")
def _einsum(site: Site) -> Kind:
    """Row inputs and the result have the same first letter, which no constant has."""
    equation = site.node.attr["equation"].s.decode().replace(" ", "")
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    first = output[:1]
    site.require(first != "" and first != "." and "..." not in inputs, "its equation has no row axis in front")
    rows = []
    for term, kind in zip(terms, site.kinds, strict=True):
        if kind.name == "row":
            site.require(term[:1] == first and term.count(first) == 1, "it works across rows")
            rows.append(kind)
        else:
            site.require(kind.fixed and first not in term, "it multiplies by something that depends on the batch")
    site.require(len({(k.dims or ())[:1] for k in rows}) == 1, "it combines tensors whose row axes differ")
    return site.made(like=rows[0])


@rule("Softmax", "LogSoftmax")
def _last_axis(site: Site) -> Kind:
    site.require(site.rank() >= 2, "it works across rows")
    return site.made(dims=site.row().dims, like=site.row())


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(site: Site) -> list[Kind]:
    x = site.row()
    site.require(not site.node.attr["is_training"].b, "it normalises by the batch's own statistics")
    site.require(all(k.fixed for k in site.kinds[1:]), "its statistics depend on the batch")
    return [site.made(dims=x.dims, like=x)]  # the other results are of no use at inference


@rule("Conv1D", "Conv2D", "MaxPool", "AvgPool", "DepthwiseConv2dNative")
def _convolution(site: Site) -> Kind:
    site.require(all(k.fixed for k in site.kinds[1:]), "its filter depends on the batch")
    site.require(site.row().has_rows and site.rank() >= 3, "it works across rows")
    sizes = list(site.node.attr["ksize"].list.i)[:1] + list(site.node.attr["strides"].list.i)[:1]
    site.require(all(size == 1 for size in sizes), "it works across rows")
    return site.made(like=site.row())
