"""Vocabulary files of another format, made from good ones (docs/bundle_format.md has the footer byte by byte)."""

import re
import struct
from pathlib import Path

from tfctr.core import library

_FOOTER = struct.Struct("<8sIIQQQQIIII")


def crc32c(data: bytes | bytearray) -> int:
    """The plain checksum; checkpoints store it rotated and with a constant added."""
    turned = (library.native().masked_crc32c(bytes(data)) - 0xA282EAD8) & 0xFFFFFFFF
    return (turned >> 17 | turned << 15) & 0xFFFFFFFF


def fingerprint(data: bytes) -> int:
    """FNV-1a and a finaliser; of the metadata and the list of checksums."""
    h, limit = 0xCBF29CE484222325, 2**64
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % limit
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 1):
        h = (h ^ h >> 33) * factor % limit
    return h


def as_earlier_format(path: Path) -> None:
    """Rewrites a string vocabulary as if its keys lay in slots; the file keeps its size."""
    whole = path.read_bytes()
    fields = list(_FOOTER.unpack(whole[-_FOOTER.size :]))
    begin = len(whole) - _FOOTER.size - fields[5]
    text, count = re.subn(rb"(?m)^buckets (\d+)$", rb"slots 00\1", whole[begin : -_FOOTER.size])
    assert count == 1 and len(text) == fields[5]
    fields[6] = fingerprint(text + whole[begin - 4 * fields[4] : begin])
    fields[8] = crc32c(text)
    fields[10] = crc32c(_FOOTER.pack(*fields)[:-4])
    path.write_bytes(whole[:begin] + text + _FOOTER.pack(*fields))
