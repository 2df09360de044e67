"""Bodies: compression with a limit, JSON that is read strictly, and where it went wrong."""

import contextlib
import gzip
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfctr.errors import InputError, OverloadedError
from tfctr.serving.server import json_body
from tfctr.serving.server.limits import Limits, TooLargeError

LIMITS = Limits(max_json_depth=8)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"instances": [{"user_id": 1e999}]}', "at 'instances[0].user_id': number is infinity"),
        (b'{"inputs": {"price": [1, NaN]}}', "at 'inputs.price[1]': JSON has no NaN"),
        (b'{"inputs": {"price": [1, -Infinity]}}', "at 'inputs.price[1]': JSON has no NaN and no Infinity"),
        (b'{"instances": [{"user_id": 1, "user_id": 2}]}', "the key 'user_id' twice"),
        (b'{"instances": [{"user_id" : 1, "user\\u005fid":2}]}', "the key 'user_id' twice"),
        (b'{"inputs": {"a": {"b64": "", "b64": ""}}}', "the key 'b64' twice"),
        (b'{"inputs": 1, "inputs": 1}', "the key 'inputs' twice"),
        (b"[" * 100_000, "100000 deep, the limit is 8"),
        (b'{"a":' * 100_000, "100000 deep, the limit is 8"),
        (b"[[[[[[[[[]]]]]]]]]", "9 deep"),
        (b"[]", "a JSON list, expected an object"),
        (b"7", "a JSON number"),
        (b"", "no valid JSON"),
        (b'{"a": 1} x', "byte 9"),
        (b'{"a": [1,]}', "at 'a"),
        (b'{"a": "\xff"}', "byte 7"),
        ('{"ä": "ö", "x": 01}'.encode(), "at 'x'"),
        (b'{"a": "\\ud800"}', "at 'a'"),
        (b'\xef\xbb\xbf{"a": 1}', "no valid JSON"),
        (b'{"inputs"', "no valid JSON"),
    ],
)
def test_refused(body, said):
    with pytest.raises(InputError) as caught:
        json_body.read(body, LIMITS)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "body",
    [
        '{"a:": "b:\\":{[", "c": [{"d:": ":"}]}',
        '{"a": {"b64": "eA=="}, "c": [{"x": [{"y": 1}]}, 3]}',
        '{"instances": ["a:b", {"b64": ""}]}',
        '{"\\"": 1, "\\\\": 2}',
    ],
)
def test_taken(body):
    assert json_body.read(body.encode(), LIMITS) == json.loads(body)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))  # without surrogates, which are text in Python only
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=4), st.booleans())
def test_what_json_writes_is_read(value, spaced):
    body = json.dumps(value, indent=2 if spaced else None).encode()
    assert json_body.read(body, Limits(max_json_depth=100)) == value


@settings(max_examples=200, deadline=None)
@given(st.text('{}[]":,\\ab1eE+-.tfnul \n', max_size=40) | st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body):
    data = body if isinstance(body, bytes) else body.encode()
    try:
        found = json_body.read(data, LIMITS)
    except InputError:
        return
    assert found == json.loads(data)


@pytest.mark.parametrize(
    ("encoding", "made"),
    [
        ("gzip", gzip.compress(b"x" * 5000, mtime=0)),
        ("gzip", gzip.compress(b"x" * 2500, mtime=0) + gzip.compress(b"x" * 2500, mtime=0)),
        ("deflate", zlib.compress(b"x" * 5000)),
        ("deflate", zlib.compress(b"x" * 5000)[2:-4]),
        ("identity", b"x" * 5000),
    ],
)
def test_unpack(encoding, made):
    assert json_body.unpack(made, encoding, 5000) == b"x" * 5000


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("members", [1, 2])
def test_unpack_in_pieces(pieces, off, members):
    """Whoever counts the bytes hears of them as they come, and may stop them."""
    whole = bytes(range(256)) * 4096 * pieces
    whole = whole[: len(whole) + off] if off < 0 else whole + b"z" * off
    told = []
    packed = gzip.compress(whole, 1) * members
    assert json_body.unpack(packed, "gzip", len(whole) * members, told.append) == whole * members
    assert sum(told) == len(whole) * members and max(told) <= json_body._PIECE
    with pytest.raises(TooLargeError):
        json_body.unpack(packed, "gzip", len(whole) * members - 1)

    def full(size):
        raise OverloadedError("full")

    with pytest.raises(OverloadedError):
        json_body.unpack(packed, "gzip", 1 << 30, full)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_stopped_at_the_limit(encoding):
    bomb = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(16)) + bomb.flush()
    with pytest.raises(TooLargeError, match="more than 1000000 bytes"):
        json_body.unpack(body, encoding, 1_000_000)
    if encoding == "gzip":
        with pytest.raises(TooLargeError):
            json_body.unpack(gzip.compress(b"x" * 600, mtime=0) * 3, "gzip", 1000)


@pytest.mark.parametrize(
    ("encoding", "body", "said"),
    [
        ("gzip", b"not gzip", "damaged"),
        ("gzip", gzip.compress(b"x" * 500, mtime=0)[:-9], "cut off"),
        ("gzip", gzip.compress(b"x", mtime=0) + b"tail", "damaged"),
        ("gzip", gzip.compress(b"x", mtime=0) * 100_000, "bytes follow"),  # would take minutes, and hold Python's lock
        ("gzip", gzip.compress(b"x", mtime=0) + gzip.compress(b"", mtime=0) * 2, "bytes follow"),
        ("gzip", b"", "cut off"),
        ("deflate", zlib.compress(b"x") + b"tail", "4 bytes follow"),
        ("br", b"x", "expected gzip, deflate or identity"),
    ],
)
def test_unpack_refuses(encoding, body, said):
    with pytest.raises(InputError, match=said):
        json_body.unpack(body, encoding, 5000)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["gzip", "deflate"]))
def test_unpack_any_bytes(body, encoding):
    with contextlib.suppress(InputError):
        assert len(json_body.unpack(body, encoding, 100)) <= 100


@pytest.mark.parametrize(
    ("header", "size", "chosen"),
    [
        (b"gzip, deflate", 5000, "gzip"),
        (b"deflate;q=0.5, br", 5000, "deflate"),
        (b"gzip;q=0, deflate", 5000, "deflate"),
        (b"GZIP", 5000, "gzip"),
        (b"gzip", 100, ""),
        (b"br", 5000, ""),
        (None, 5000, ""),
    ],
)
def test_accepted(header, size, chosen):
    assert json_body.accepted(header, size) == chosen
    if chosen:
        assert json_body.unpack(json_body.pack(b"y" * size, chosen), chosen, size) == b"y" * size
