"""Reading the static vocabulary files of a model while proving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graph_opt.item import StoreFile
from graph_opt.prove.pools import CannotProbe
from graph_opt.prove.steps import Vocabulary
from tfctr.core import library

_SAMPLE = 64


class Vocabularies(Mapping[int, Vocabulary]):
    """Vocabulary by store index, opened when first asked for."""

    def __init__(self, files: Sequence[StoreFile]) -> None:
        self._files = files
        self._opened: dict[int, Vocabulary] = {}

    def __getitem__(self, index: int) -> Vocabulary:
        if index not in self._opened:
            if not 0 <= index < len(self._files) or self._files[index].kind != "vocab":
                raise CannotProbe(f"store file {index} is no vocabulary")
            self._opened[index] = _open(self._files[index])
        return self._opened[index]

    def __iter__(self) -> Iterator[int]:
        return (k for k, file in enumerate(self._files) if file.kind == "vocab")

    def __len__(self) -> int:
        return sum(file.kind == "vocab" for file in self._files)


_ABSENT = -(1 << 63) + 0x5EED  # no vocabulary holds it: values are row numbers


def _open(file: StoreFile) -> Vocabulary:
    module = library.native()
    path = str(file.path)

    def find(keys: Sequence[object]) -> list[int | None]:
        if not keys:
            return []
        given = [k if isinstance(k, bytes) else int(k) for k in keys]  # type: ignore[call-overload]
        found = module.vocab_find(path, given, _ABSENT)
        return [None if value == _ABSENT else int(value) for value in np.asarray(found).tolist()]

    sample = module.vocab_sample_keys(path, _SAMPLE)
    return Vocabulary(sample.tolist() if isinstance(sample, np.ndarray) else list(sample), find)
