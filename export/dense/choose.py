"""Which provider runs a tower: the one asked for, or with ``auto`` the fastest of those that run on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from export.cache import CompileCache
from export.dense.built import Built, NotUsable
from export.dense.options import AUTO, OPENVINO, TENSORRT, DenseOptions
from export.dense.tower import ExportedTower
from export.samples import BoundarySamples
from graph_opt.item import GraphItem
from tfctr.engines.providers import why_not
from tfctr.errors import TfctrError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """built: None where the tower stays on TensorFlow. reason: why it is this one, with numbers, or why none.
    considered: provider -> what came of it, of the others. tried: of the engines that were made and not taken, the
    one that came nearest: its times and steps say what the reason says in words.
    """

    built: Built | None
    reason: str
    considered: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tried: Built | None = None


def choose(
    item: GraphItem,
    exported: ExportedTower,
    samples: Callable[[], BoundarySamples],
    options: DenseOptions,
    cache: CompileCache,
) -> Choice:
    """Makes the engines that come into question and takes one. samples: called where they are needed."""

    def make(provider: str) -> Built:
        try:
            if provider == OPENVINO:
                from export.dense.openvino import openvino_engine

                return openvino_engine(exported, samples(), options, cache)
            from export.dense.tensorrt import tensorrt_engine

            return tensorrt_engine(item, exported, samples(), options, cache)
        except NotUsable:
            raise
        except TfctrError as error:  # also UsageError: what the user asked for was checked before
            raise NotUsable(str(error)) from error
        except ImportError as error:
            raise NotUsable(f"{error.name} is not installed") from error
        except Exception as error:  # whatever a library raises: TensorFlow serves the model all the same
            raise NotUsable(f"{type(error).__name__}: {error}"[:400]) from error

    if options.dense != AUTO:
        try:
            return Choice(built=make(options.dense), reason="asked for")
        except NotUsable as error:
            return Choice(built=None, reason=f"{options.dense}: {error}")
    return _fastest(options, make)


def _fastest(options: DenseOptions, make: Callable[[str], Built]) -> Choice:
    told: dict[str, str] = {}
    found: list[Built] = []
    slower: list[Built] = []
    for provider in (OPENVINO, TENSORRT):
        reason = _why_not(provider, options)
        if reason:
            told[provider] = reason
            continue
        try:
            built = make(provider)
        except NotUsable as error:
            told[provider] = str(error)
            continue
        told[provider] = str(built.versus.get("reason", "its speed was not measured"))
        (found if built.versus.get("faster") else slower).append(built)
    if not found:
        nearest = max(slower, key=lambda one: _gain(one.versus), default=None)
        return Choice(built=None, reason=_all_told(told), considered=told, tried=nearest)
    best = max(found, key=lambda one: _gain(one.versus))
    others = {provider: text for provider, text in told.items() if provider != best.provider}
    return Choice(built=best, reason=told[best.provider], considered=others)


def _why_not(provider: str, options: DenseOptions) -> str:
    """Why ``auto`` does not even try a provider."""
    if options.precision_for(provider) is None:
        return f"it has no {options.precision}"
    reason = why_not(provider)
    if reason and provider == TENSORRT and options.targets:
        # Plans for other machines are no question of what is fastest here.
        reason += f" (plans for {', '.join(options.targets)} are built with --dense tensorrt)"
    return reason


def _gain(versus: Mapping[str, Any]) -> float:
    return float(versus.get("geometric_mean", 0.0))


def _all_told(told: Mapping[str, str]) -> str:
    return "; ".join(f"{provider}: {text}" for provider, text in told.items())
