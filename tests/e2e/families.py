"""What a conversion must make of each model of the zoo: how many lookups are fused, and why the others are left.

``fused`` counts the lookups of all signatures; ``left`` holds one regular expression per lookup that stays as it was.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Expected:
    fused: int
    left: tuple[str, ...] = ()


FAMILIES: dict[str, Expected] = {}
