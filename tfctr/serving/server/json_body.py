"""Bodies of HTTP requests and replies: compression with a limit, and JSON read strictly.

A JSON parser keeps the last of several equal keys, and stops at a byte, not at a feature. Here a body that no two
programs would read alike is refused, and the message says where in the request it went wrong.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tfctr.core import library
from tfctr.errors import InputError
from tfctr.serving.server.limits import Limits, TooLargeError

_GZIP = 16 + zlib.MAX_WBITS
_SMALLEST_COMPRESSED = 1024  # below it a compressed reply saves nothing
_LEVEL = 1
_BLOCK = 64 << 10
_PIECE = 1 << 20  # what one step unpacks to at most
_MOST_MEMBERS = 4096  # compressed in blocks of 16 KiB, a body of 64 MiB has as many


def unpack(body: bytes, encoding: str, limit: int, hold: Callable[[int], None] = lambda size: None) -> bytes:
    """``body`` without its content encoding; never makes more than ``limit`` bytes.

    hold: is told of the bytes as they unpack, and may raise.

    Raises:
      InputError: an unknown encoding, damaged or cut-off data.
      TooLargeError: it unpacks to more than ``limit``.
    """
    if encoding in ("", "identity"):
        return body
    if encoding in ("gzip", "x-gzip"):
        return _inflate(body, _GZIP, "gzip", limit, hold)
    if encoding == "deflate":
        # zlib's format as the standard has it, or the bare stream that some clients send.
        is_zlib = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
        return _inflate(body, zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS, "deflate", limit, hold)
    raise InputError(f"content-encoding {encoding[:40]!r}: expected gzip, deflate or identity")


def _inflate(body: bytes, window: int, name: str, limit: int, hold: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    left = limit
    view = memoryview(body)
    at = 0
    for _ in range(_MOST_MEMBERS):
        inflate = zlib.decompressobj(window)
        start = left
        more = False  # of what was taken in already
        while not inflate.eof:
            # In blocks, as zlib copies what lies behind the end of a member.
            block = view[at : at + _BLOCK]
            if not block and not more:
                raise InputError(f"content-encoding {name}: the body is cut off")
            most = min(left + 1, _PIECE)
            try:
                part = inflate.decompress(block, most)
            except zlib.error as error:
                raise InputError(f"content-encoding {name}: the body is damaged: {error}") from None
            left -= len(part)
            if left < 0:
                raise TooLargeError(f"the body unpacks to more than {limit} bytes, the limit (max_body_bytes)")
            hold(len(part))
            parts.append(part)
            more = len(part) == most
            at += len(block) - len(inflate.unused_data if inflate.eof else inflate.unconsumed_tail)
        if at == len(body):
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if window != _GZIP or left == start:  # gzip files may follow each other; empty ones may not
            break
    raise InputError(f"content-encoding {name}: {len(body) - at} bytes follow the compressed data")


def accepted(header: bytes | None, size: int) -> str:
    """ "gzip", "deflate" or "" for a reply of ``size`` bytes, by the request's accept-encoding."""
    if header is None or size < _SMALLEST_COMPRESSED:
        return ""
    offers = header.decode("latin-1").lower()
    for name in ("gzip", "deflate"):
        for offer in offers.split(","):
            coding, _, parameter = offer.partition(";")
            if coding.strip() == name and parameter.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
                return name
    return ""


def pack(body: bytes, encoding: str) -> bytes:
    """``body`` in ``encoding``, of :func:`accepted`."""
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    return compress.compress(body) + compress.flush()


def read(body: bytes, limits: Limits, what: str = "the request body") -> dict[str, Any]:
    """The JSON object that ``body`` holds.

    Raises:
      InputError: not JSON, not an object, NaN, Infinity or a number no float holds, a key twice, deeper than the limit;
        with the place in the request where there is one ("instances[3].user_id").
    """
    native = library.native()
    depth, keys = native.json_shape(body)
    if depth > limits.max_json_depth:
        raise InputError(f"{what} has lists and objects {depth} deep, the limit is {limits.max_json_depth}")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{what} is no valid JSON: {_where(body, error)}") from None
    if type(parsed) is not dict:
        raise InputError(f"{what} is a JSON {_kind(parsed)}, expected an object")
    if keys != _few_keys(parsed):
        twice = _duplicate(body)
        if twice is not None:
            raise InputError(f"{what} has the key {twice[:80]!r} twice in one object")
    return parsed


def _where(body: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        offset = len(body.decode()[: error.pos].encode())  # the parser counts characters
    except UnicodeDecodeError as wrong:
        offset = wrong.start
    path = library.native().json_path(body, offset)
    saw = body[offset : offset + 12].decode("utf-8", "backslashreplace")
    reason = error.msg.partition(": line ")[0]
    if saw.lstrip("-").startswith(("NaN", "Infinity", "nan", "inf")):
        reason = "JSON has no NaN and no Infinity"
    found = f" (found {saw!r})" if saw else ""
    return f"{f'at {path!r}: ' if path else ''}{reason}{found}, byte {offset}"


def _kind(value: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _few_keys(parsed: dict[str, Any]) -> int:
    """Keys of ``parsed``, of the objects right in it, and of lists of objects right in it: all that most requests have.
    At most the number of all keys."""
    total = len(parsed)
    for value in parsed.values():
        if type(value) is dict:
            total += len(value)
        elif type(value) is list and set(map(type, value)) == {dict}:
            total += sum(map(len, value))
    return total


def _duplicate(body: bytes) -> str | None:
    """The first key that an object of ``body`` has twice."""
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> int:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.append(name)
            seen.add(name)
        return 0

    json.loads(body, object_pairs_hook=check)
    return found[0] if found else None


def text_of(value: Mapping[str, Any], key: str, default: str = "") -> str:
    """A text among the members of a request. Raises InputError for anything else."""
    found = value.get(key, default)
    if type(found) is not str:
        raise InputError(
            f"{key!r} is a JSON {_kind(found) if type(found) is not dict else 'object'}, expected a string"
        )
    return found
