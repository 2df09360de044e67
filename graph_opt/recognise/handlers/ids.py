"""Id transforms: ops that turn every raw value into another one, written as steps of the spec."""

from __future__ import annotations

import dataclasses

from graph_opt.lookup_spec import Step
from graph_opt.recognise.engine import NodeDef, Walk, handles, with_step
from graph_opt.recognise.handlers.shapes import is_zero, plain_base
from graph_opt.recognise.values import Fingerprints, Ones, Opaque, PerValue, Test, UniqueIndex, Value

_INTEGERS = ("int32", "int64", "uint32", "uint64")
_CASTABLE = (*_INTEGERS, "int8", "int16", "uint8", "uint16")


def chain_of(walk: Walk, value: Value, dtypes: tuple[str, ...] = _INTEGERS) -> PerValue | None:
    """``value`` as a chain whose elements have one of ``dtypes``; constants are no chains."""
    if walk.dtype(value) not in dtypes or (isinstance(value, Opaque) and walk.const(value) is not None):
        return None
    return walk.per_value(value)


def integer(walk: Walk, value: Value) -> int | None:
    """The integer that a constant tensor holds."""
    number = walk.scalar(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


@handles("FloorMod", "FloorDiv")
def modulo_and_division(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    chain, number = chain_of(walk, inputs[0]), integer(walk, inputs[1])
    if chain is None or number is None or number <= 0:
        return None
    return with_step(chain, Step("mod" if node.op == "FloorMod" else "divide", (str(number),)))


@handles("BitwiseAnd")
def low_bits(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """``v & (2^k - 1)`` is ``v mod 2^k``, for negative numbers too."""
    for data, mask in (inputs, inputs[::-1]):
        chain, number = chain_of(walk, data), integer(walk, mask)
        if chain is not None and number is not None and number > 0 and number & (number + 1) == 0:
            return with_step(chain, Step("mod", (str(number + 1),)))
    return None


@handles("Maximum", "Minimum", "ClipByValue")
def clipped(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """Ids clipped to [0, V): every bound is a replacement of the ids beyond it."""
    if node.op != "ClipByValue" and chain_of(walk, inputs[0]) is None:
        inputs = inputs[::-1]
    chain, bounds = chain_of(walk, inputs[0]), [integer(walk, v) for v in inputs[1:]]
    if chain is None or None in bounds:
        return None
    low = bounds[0] if node.op != "Minimum" else None
    high = bounds[-1] if node.op != "Maximum" else None
    steps = []
    if high is not None:
        steps.append(_at_least(high + 1, high))
    if low == 0:
        steps.append(Step("select_negative", ("0",)))
    elif low is not None:
        return None
    return with_step(chain, *steps)


def _at_least(bound: int, replacement: int) -> Step:
    """``v >= bound ? replacement : v``."""
    return Step("select_out_of_range", (str(-(1 << 63)), str(bound), str(replacement)))


@handles("Add", "AddV2", "Mul", "Sub")
def arithmetic(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    left, right = inputs
    if node.op != "Sub" and chain_of(walk, left) is None:
        left, right = right, left
    chain = chain_of(walk, left)
    if chain is None:
        return None
    if node.op == "Mul" and isinstance(right, Test) and right.number:  # ids * (x != padding)
        return _masked(walk, right, chain, "ne", 0)
    number = 1 if isinstance(right, Ones) else integer(walk, right)
    if number is not None:
        if node.op == "Mul":
            return with_step(chain, Step("mul", (str(number),)))
        return with_step(chain, Step("add", (str(-number if node.op == "Sub" else number),)))
    if node.op == "Sub":
        return None
    return _column_offsets(walk, chain, right) or _computed_offsets(walk, chain, right)


def _computed_offsets(walk: Walk, chain: PerValue, right: Value) -> Value | None:
    """``values + size * position`` of bucketized columns; the positions are computed from the values' shape alone."""
    if not isinstance(right, PerValue | Opaque) or walk.dtype(right) not in _INTEGERS:
        return None
    steps = right.steps if isinstance(right, PerValue) else ()
    base = right.base if isinstance(right, PerValue) else right.tensor
    leaves = walk.facts.leaves(base)
    shape = walk.shape(chain.base)
    if not leaves or len(steps) > 1 or any(s.kind != "mul" for s in steps) or not shape or shape[-1] is None:
        return None
    if {plain_base(walk, leaf.removeprefix("shape:")) for leaf in leaves} != {chain.base} or chain.base in leaves:
        return None
    size = int(steps[0].args[0]) if steps else 1
    return with_step(chain, Step("addcol", tuple(str(size * k) for k in range(shape[-1])))) if shape[-1] > 1 else chain


def _column_offsets(walk: Walk, chain: PerValue, offsets: Value) -> Value | None:
    """ids [B, F] + offsets [F]: one offset per column (stacked tables)."""
    array, shape = walk.const(offsets), walk.shape(chain)
    if array is None or not shape or array.size != array.shape[-1] or shape[-1] not in (None, array.size):
        return None
    return with_step(chain, Step("addcol", tuple(str(int(c)) for c in array.reshape(-1))))


@handles("Cast")
def casts(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    source, target = walk.dtype(inputs[0]), walk.dtype(walk.output(node))
    floats = ("float16", "bfloat16", "float32", "float64")
    if target in _INTEGERS and source in (*_CASTABLE, "float32", "float64"):
        chain = chain_of(walk, inputs[0], (source,))
        return None if chain is None else chain if source == target else with_step(chain, Step("cast", (target,)))
    if (
        source in floats
        and target in floats
        and walk.facts.dtype(inputs[0].tensor).size <= walk.facts.dtype(walk.output(node)).size
    ):
        return chain_of(walk, inputs[0], (source,))  # exact: weights of a narrower float
    return None


@handles("Select", "SelectV2")
def selections(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """``v < 0 ? v + V : v`` and other replacements of ids that are out of range."""
    test, yes, no = inputs
    if not isinstance(test, Test):
        return None
    fixed = is_zero(walk, no) or walk.scalar(no) is not None
    if isinstance(yes, PerValue | Opaque) and walk.scalar(yes) is None and fixed:
        test, yes, no = test.negated(), no, yes
    found = _vocabulary_with_buckets(walk, test, yes, no)
    if found is not None:
        return found
    chain = chain_of(walk, no)
    masked = (
        None if chain is None else _masked(walk, test, chain, "eq", 0 if is_zero(walk, yes) else integer(walk, yes))
    )
    if masked is not None:
        return masked
    if chain is None or any((c.base, c.steps, c.tokens) != (chain.base, chain.steps, chain.tokens) for c in test.conds):
        return _swapped_wrap(walk, test, yes, no)
    return _replaced(walk, test, chain, yes)


def _masked(walk: Walk, test: Test, chain: PerValue, kind: str, number: int | None) -> Value | None:
    """``chain`` with the elements whose raw value is a certain one replaced by ``number`` (mask tokens)."""
    cond = next(iter(test.conds))
    if len(test.conds) != 1 or cond.kind != kind or number is None or cond.limit is None:
        return None
    text = str(cond.limit)
    # The text of an integer is compared as the integer that it is.
    raw = not cond.steps or ([s.kind for s in cond.steps] == ["as_string"] and text == _canonical(text))
    if not raw or (cond.base, cond.tokens) != (chain.base, chain.tokens):
        return None
    return with_step(chain, Step("select_equal", (str(number), text)))


def _canonical(text: str) -> str | None:
    try:
        return str(int(text))
    except ValueError:
        return None


def _replaced(walk: Walk, test: Test, chain: PerValue, yes: Value) -> Value | None:
    """``chain`` with the elements that pass ``test`` replaced by ``yes``."""
    bounds = {c.kind: c.limit for c in test.conds}
    number = 0 if is_zero(walk, yes) else integer(walk, yes)
    if bounds == {"lt": 0}:
        if number is not None:
            return with_step(chain, Step("select_negative", (str(number),)))
        if isinstance(yes, PerValue) and (yes.base, yes.tokens) == (chain.base, chain.tokens):
            added = yes.steps[len(chain.steps) :]
            if yes.steps[: len(chain.steps)] == chain.steps and len(added) == 1 and added[0].kind == "add":
                return with_step(chain, Step("wrap_negative", added[0].args))
    if set(bounds) == {"ge"} and number is not None and isinstance(bounds["ge"], int):
        return with_step(chain, _at_least(bounds["ge"], number))
    if set(bounds) == {"lt", "ge"} and (test.any and len(test.conds) == 2) and number is not None:
        return with_step(chain, Step("select_out_of_range", (str(bounds["lt"]), str(bounds["ge"]), str(number))))
    return None


def _vocabulary_with_buckets(walk: Walk, test: Test, yes: Value, no: Value) -> Value | None:
    """``id != default ? id : offset + hash(key)``: a vocabulary whose absent keys go to hash buckets. A mask token that
    was replaced in between stays replaced.
    """
    cond = next(iter(test.conds))
    if len(test.conds) != 1 or cond.kind not in ("ne", "eq"):
        return None
    looked_up, hashed = (yes, no) if cond.kind == "ne" else (no, yes)
    if not isinstance(looked_up, PerValue) or not isinstance(hashed, PerValue) or not looked_up.steps:
        return None
    steps = list(looked_up.steps)
    masks: list[Step] = []
    while len(steps) > 1 and steps[-1].kind == "select_equal" and steps[-1].args[0] != str(cond.limit):
        masks.insert(0, steps.pop())
    *before, find = steps
    if (
        find.kind != "vocab"
        or find.args[1] != str(cond.limit)
        or (cond.base, cond.steps) != (looked_up.base, looked_up.steps)
    ):
        return None
    if (
        hashed.base != looked_up.base
        or hashed.steps[: len(before)] != tuple(before)
        or hashed.tokens != looked_up.tokens
    ):
        return None
    rest = [s for s in hashed.steps[len(before) :] if s.kind != "as_string"]
    offset = rest.pop().args[0] if rest and rest[-1].kind == "add" else "0"
    if len(rest) != 1 or rest[0].kind != "hash_fast":
        return None
    step = Step("vocab_oov", (find.args[0], offset, rest[0].args[0]))
    cuts = tuple(c for c in looked_up.cuts if c.steps <= len(before))
    return dataclasses.replace(looked_up, steps=(*before, step, *masks), cuts=cuts)


def _swapped_wrap(walk: Walk, test: Test, yes: Value, no: Value) -> Value | None:
    # v >= 0 ? v : v + V
    if isinstance(yes, PerValue | Opaque) and isinstance(no, PerValue) and len(test.conds) == 1:
        plain, cond = walk.per_value(yes), next(iter(test.conds))
        if plain and (cond.kind, cond.limit) == ("ge", 0) and (cond.base, cond.steps) == (plain.base, plain.steps):
            added = no.steps[len(plain.steps) :]
            if (
                no.base == plain.base
                and no.steps[: len(plain.steps)] == plain.steps
                and [s.kind for s in added] == ["add"]
            ):
                return with_step(plain, Step("wrap_negative", added[0].args))
    return None


@handles("AsString")
def as_string(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    plain = node.attr["width"].i in (-1, 0) and not node.attr["fill"].s and not node.attr["shortest"].b
    chain = chain_of(walk, inputs[0], _CASTABLE) if plain else None
    return None if chain is None else with_step(chain, Step("as_string"))


@handles("StringToHashBucketFast", "StringToHashBucketStrong")
def hashes(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    chain, buckets = chain_of(walk, inputs[0], ("string",)), str(node.attr["num_buckets"].i)
    if chain is None:
        return None
    if node.op == "StringToHashBucketFast":
        return with_step(chain, Step("hash_fast", (buckets,)))
    keys = [str(k % (1 << 64)) for k in node.attr["key"].list.i]
    return with_step(chain, Step("hash_strong", (buckets, *keys)))


@handles("Fingerprint")
def fingerprints(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    """One text per row of the matrix: more would be one fingerprint of all of them."""
    chain, method = chain_of(walk, inputs[0], ("string",)), walk.scalar(inputs[1])
    if chain is None or method != "farmhash64" or (walk.shape(inputs[0]) or [0])[1:] != [1]:
        return None
    return Fingerprints(walk.output(node), chain)


@handles("Bitcast")
def fingerprint_keys(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    if not isinstance(inputs[0], Fingerprints) or walk.dtype(walk.output(node)) != "int64":
        return None
    return with_step(inputs[0].of, Step("fingerprint"))


@handles("Bucketize")
def bucketize(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    chain = chain_of(walk, inputs[0], ("float32",))
    boundaries = [repr(float(b)) for b in node.attr["boundaries"].list.f]
    return None if chain is None else with_step(chain, Step("bucketize", tuple(boundaries)))


@handles("TfctrVocabFind")
def vocabulary(walk: Walk, node: NodeDef, inputs: list[Value]) -> Value | None:
    chain, default = chain_of(walk, inputs[1], ("string", "int32", "int64")), walk.scalar(inputs[2])
    if chain is None or default is None:
        return None
    return with_step(chain, Step("vocab", (str(node.attr["index"].i), str(default))))


@handles("Unique", "UniqueV2")
def unique(walk: Walk, node: NodeDef, inputs: list[Value]) -> list[Value | None] | None:
    chain = walk.per_value(inputs[0])
    if chain is None:
        return None
    values = walk.output(node)
    walk.uniques[values] = chain
    return [None, UniqueIndex(walk.output(node, 1), dataclasses.replace(chain), values)]
