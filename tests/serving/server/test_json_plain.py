"""JSON straight to the packed form: the same as over Python's objects, to the bit, or left to them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_packer import INT64, SPARSE, SPARSE_FEATURE, packer, part
from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving.server import json_body
from tfctr.serving.server.limits import Limits

LIMITS = Limits(max_json_depth=8, max_rows=50)
RAGGED = [part("r", "string", [-1]), part("r_1", "int32", [-1]), part("r_2", "int64", [-1])]
PARTS = [part("n", "int64", [-1]), part("p", "float32", [-1, 2]), part("b", "bool", [-1]), part("t", "string", [-1])]
PLAN = packer(
    *SPARSE, *RAGGED, *PARTS,
    features=[SPARSE_FEATURE, {"name": "r", "kind": "ragged", "values": 3, "row_splits": [4, 5]}],
)  # fmt: skip

WHOLE = st.integers(INT64.min, INT64.max)
# What every JSON writer writes as it is: no quotes, backslashes, control characters.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]), max_size=4)
REAL = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000)
ROW = st.fixed_dictionaries(
    {
        "s": st.lists(WHOLE, max_size=3),
        "r": st.lists(st.lists(TEXT, max_size=2), max_size=2),
        "n": WHOLE,
        "p": st.lists(REAL, min_size=2, max_size=2),
        "b": st.booleans(),
        "t": TEXT,
    }
)


PIECES = [*'0123456789-+.eE[]{},: "tfn\\', "null", "true", "1e400", "\x00", "\xff", '"s":']
"""What is put into bodies."""


def plain(body, plan=PLAN):
    """Straight from the text; None: left to the other way."""
    request = library.native().json_predict(body, LIMITS.max_json_depth, LIMITS.max_rows)
    return None if request is None else library.native().pack_json(plan, request)


def over_objects(body, plan=PLAN):
    read = json_body.read(body, LIMITS)
    native = library.native()
    if "instances" in read:
        return plan.pack(native.instances_to_columns(read["instances"]))
    return plan.pack({name: native.without_base64(value, name) for name, value in read["inputs"].items()})


def same(a, b):
    alike = list(a.shapes) == list(b.shapes) and list(a.strings) == list(b.strings)
    return alike and a.arena.tobytes() == b.arena.tobytes()


def written(value, spaced):
    return json.dumps(value, ensure_ascii=False, indent=1 if spaced else None).encode()


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=5), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_rows_and_columns(rows, random, spaced, by_rows):
    """In any order of the keys; "-0" is left to the other way, which keeps its sign or not."""
    if by_rows:
        shuffled = [dict(random.sample(list(row.items()), len(row))) for row in rows]
        body = written({"instances": shuffled, "signature_name": "x"}, spaced)
    else:
        body = written({"inputs": {key: [row[key] for row in rows] for key in rows[0]}}, spaced)
    packed = plain(body)
    assert packed is not None and same(packed, over_objects(body))


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4), st.booleans())
def test_features_by_their_parts(rows, spaced):
    indices = [[i, j] for i, row in enumerate(rows) for j in range(len(row["s"]))]
    flat = [value for row in rows for value in row["s"]]
    columns = {key: [row[key] for row in rows] for key in ("n", "p", "b", "t")}
    columns |= {"s/values": flat, "s/indices": indices, "s/dense_shape": [len(rows), 3]}
    columns |= {"r": ["a"], "r_1": [0, 1], "r_2": [0, 1]}
    body = written({"inputs": columns}, spaced)
    try:
        want = over_objects(body)
    except InputError:  # [] is no list of pairs
        assert not indices and plain(body) is None
        return
    packed = plain(body)
    assert packed is not None and same(packed, want)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=3), st.booleans(), st.data())
def test_changed_bodies_are_read_alike_or_left(rows, by_rows, data):
    """Characters cut, set and put in: where we take it, so does the other way, with the same result."""
    body = {"instances": rows} if by_rows else {"inputs": {key: [row[key] for row in rows] for key in rows[0]}}
    text = bytearray(written(body, False))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.sampled_from([*'0123456789-+.eE[]{},: "tfn\\', "null", "true", "1e400", "\x00", "\xff", '"s":'])
        )
        match data.draw(st.sampled_from(["cut", "set", "insert", "remove"])):
            case "cut":
                del text[at:]
            case "set":
                text[at : at + 1] = piece.encode("latin-1")
            case "insert":
                text[at:at] = piece.encode("latin-1")
            case _:
                del text[at : at + 2]
    packed = plain(bytes(text))
    if packed is not None:
        assert same(packed, over_objects(bytes(text)))


TYPES = ["int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "bool"]
NUMBERS = [
    "0",
    "-1",
    "-0",
    "01",
    "1.5",
    "1e2",
    "1E+2",
    "1.e2",
    ".5",
    "-",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "16777217",
    "1e38",
    "1e39",
    "1e-46",
    "1e400",
    "0.1",
    "-0.0",
    "123456789012345678901234567890",
    "256",
    "127",
    "128",
    "true",
    "null",
    "NaN",
    '"1"',
    "[1]",
    "{}",
]


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_every_type(dtype):
    plan = packer(part("x", dtype, [-1]))
    taken = 0
    for number in NUMBERS:
        for body in (b'{"inputs":{"x":[%s]}}' % number.encode(), b'{"instances":[{"x":%s}]}' % number.encode()):
            packed = plain(body, plan)
            if packed is not None:
                taken += 1
                assert same(packed, over_objects(body, plan)), number
    assert taken >= 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[{"n":1,"n":2}]}', b'{"inputs":{"n":[1],"n":[2]}}', b'{"instances":[{"n":1},{"m":1}]}',
        b'{"instances":[{"n":1},{}]}', b'{"instances":[]}', b'{"instances":[1]}', b'{"inputs":[1]}', b"[]", b"{}", b"",
        b'{"inputs":{"n":[1]},"user":{}}', b'{"inputs":{"n":[1]},"instances":[{"n":1}]}', b'{"inputs":{"n":[1]}} x',
        b'{"inputs":{"n":[1],}}', b'{"inputs":{"n":[1,]}}', b'{"inputs":{"\\u006e":[1]}}', b'{"inputs":{"n":1}}',
        b'{"inputs":{"n":[[1]]}}', b'{"inputs":{"n":[1,[1]]}}', b'{"inputs":{"t":["\\n"]}}',
        b'{"inputs":{"t":["\xff"]}}',
        b'{"inputs":{"t":[{"b64":""}]}}', b'{"inputs":{"n":[1}}', b'{"inputs":{"n":[' + b"1," * 60 + b"1]}}",
        b'{"inputs":{"n":' + b"[" * 70 + b"]" * 70 + b"}}", b'{"signature_name":7,"inputs":{"n":[1]}}',
    ],
)  # fmt: skip
def test_what_is_left_to_the_other_way(body):
    plan = packer(*PARTS[:1], *PARTS[3:])
    assert plain(body, packer(*PARTS[:1])) is None and plain(body, packer(*PARTS[3:])) is None
    assert plain(body, plan) is None


def test_kserve_values_behind_the_json():
    native = library.native()
    ids, prices = np.int64([3, 4]), np.float32([[1, 2], [3, 4]])
    inputs = [
        {"name": "n", "shape": [2], "datatype": "INT64", "parameters": {"binary_data_size": 16}},
        {"name": "p", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}},
    ]
    head = json.dumps({"id": "r", "inputs": inputs, "parameters": {"priority": 1}}).encode()
    tail = ids.tobytes() + prices.tobytes()
    plan = packer(*PARTS[:2])

    def pack(head, tail):
        request = native.json_infer(head + tail, len(head), 8, 50)
        return None if request is None else native.pack_json(plan, request)

    assert same(pack(head, tail), plan.pack({"n": ids, "p": prices}))
    assert json.loads(native.json_infer(head + tail, len(head), 8, 50).rest) == {
        "id": "r",
        "parameters": {"priority": 1},
    }
    for changed in (tail[:-1], tail + b"x"):
        assert pack(head, changed) is None
    for old, new in (
        (b"FP32", b"FP64"), (b"[2, 2]", b"[2, 3]"), (b'"n"', b'"p"'), (b'"n"', b'"q"'), (b"16}", b"-1}"),
        (b"16}", b"1.5}"),
        (b'"shape": [2], ', b""), (b'"datatype"', b'"type"'), (b"binary_data_size", b"shared_memory_region"),
        (b'"inputs": [', b'"inputs": [{}, '), (b"[2]", b"[-2]"), (b"INT64", b"INT63"),
    ):  # fmt: skip
        assert old in head and pack(head.replace(old, new, 1), tail) is None, (old, new)
    assert native.json_infer(head + tail, len(head), 3, 50) is None  # deeper than the limit


def test_an_input_that_is_named_as_base64_is():
    """{"b64": ...} is bytes wherever it stands, whatever the model calls its inputs."""
    plan = packer(part("b64", "string", [-1]))
    for body in (b'{"instances": [{"b64": "a"}]}', b'{"inputs": {"b64": ["a"]}}'):
        assert plain(body, plan) is None
