"""Writes the index of a tensor bundle by hand, to test checkpoints that TensorFlow itself would not write here.

The index is a LevelDB-style sorted table: blocks of prefix-compressed entries (prefixes are not used here), each with
one byte of compression type and a masked crc32c, an index block over them, and a 48-byte footer.
"""

import struct
from pathlib import Path

from tfctr.core import library

TABLE_MAGIC = 0xDB4775248B80FB57


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    body = bytearray()
    restarts = []
    for key, value in entries:
        restarts.append(len(body))
        body += varint(0) + varint(len(key)) + varint(len(value)) + key + value
    restarts = restarts or [0]
    return bytes(body) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def write_index(path: Path, entries: dict[bytes, bytes]) -> None:
    """Writes a sorted table of `entries` (key -> serialised proto; key b"" is the header)."""
    native = library.native()
    out = bytearray()

    def append(block: bytes) -> bytes:
        handle = varint(len(out)) + varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", native.masked_crc32c(block + b"\0")))
        return handle

    data = append(_block(sorted(entries.items())))
    meta = append(_block([]))
    index = append(_block([(b"\xff", data)]))
    out += (meta + index).ljust(40, b"\0") + struct.pack("<Q", TABLE_MAGIC)
    path.write_bytes(out)
