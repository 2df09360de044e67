"""Configuration text to checked data: JSON without duplicate keys or NaN, then the schema; errors name the key.

The schema says what a key may hold (``config_schema.json``); this module turns its verdict into one line that names the
place, what came, what was expected, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from tfctr.errors import UsageError

MAX_CONFIG_BYTES = 16 << 20


@functools.cache
def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a configuration file."""
    text = importlib.resources.files("tfctr.serving.server").joinpath("config_schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@functools.cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def read_text(path: Path, what: str) -> str:
    """The text of a small file; UsageError that says ``what`` it was meant to be."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise UsageError(f"{path}: {what} of {path.stat().st_size} bytes; expected at most {MAX_CONFIG_BYTES}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {what} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: {what} can't be read: {error.strerror}") from error


def parse(text: str, where: str) -> dict[str, Any]:
    """Parses and checks the text of a configuration; ``where`` (its path) opens every message.

    Raises:
      UsageError: no JSON, a duplicate or unknown key, a value of the wrong type or range.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in items:
            if key in made:
                raise UsageError(f"{where}: key {key!r} is there twice in one object")
            made[key] = value
        return made

    def constant(name: str) -> Any:
        raise UsageError(f"{where}: {name} is not a number of JSON")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: lists or objects nested too deep") from error
    check(data, where)
    checked: dict[str, Any] = data
    return checked


def check(data: Any, where: str) -> None:
    """Checks parsed data against the schema; UsageError names the first wrong place."""
    _check_finite(data, where, ())
    errors = sorted(_validator().iter_errors(data), key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise UsageError(f"{where}: {_words(errors[0])}")


def _check_finite(value: Any, where: str, path: tuple[Any, ...]) -> None:
    """1e999 is infinite once it is read, and passes every minimum."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: {_place(path)} is {value}, expected a finite number")
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _check_finite(one, where, (*path, key))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'executors'?``, or what there is where nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(names) or 'none'}"


def check_name(name: str, where: str) -> None:
    """Whether ``name`` can be a model's: the schema's rule, for names that come from folders and other files too."""
    rule = schema()["$defs"]["model"]["properties"]["name"]
    if not re.fullmatch(rule["pattern"], name, re.ASCII) or len(name) > rule["maxLength"]:
        raise UsageError(f"{where}: {name!r} can't be the name of a model, expected {rule['pattern']}; give it another")


def _words(error: Any) -> str:
    place = _place(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema.get("additionalProperties"), bool):
        known = error.schema.get("properties", {})
        unknown = next(key for key in error.instance if key not in known)
        return f"unknown key {unknown!r} in {place}{did_you_mean(unknown, known)}"
    if error.validator == "oneOf" and isinstance(error.instance, Mapping) and error.context:
        inner = [one for one in error.context if one.validator in ("additionalProperties", "minimum", "maximum")]
        if inner:
            return _words(inner[0])
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"{place} lacks the key {missing!r}"
    return f"{place} is {_shown(error.instance)}, expected {_expected(error)}"


def _place(path: Iterable[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _expected(error: Any) -> str:
    rule, value = error.validator, error.validator_value
    if rule == "type":
        return " or ".join([value] if isinstance(value, str) else value)
    if rule == "enum":
        return "one of " + ", ".join(_shown(one) for one in value)
    if rule in ("minimum", "maximum", "exclusiveMinimum", "minItems", "maxLength", "minLength", "minProperties"):
        words = {
            "minimum": "at least",
            "maximum": "at most",
            "exclusiveMinimum": "more than",
            "minItems": "a list of at least",
            "minProperties": "an object with at least",
            "minLength": "text of at least",
            "maxLength": "text of at most",
        }
        unit = {"minItems": " item", "minProperties": " key"}.get(rule, " characters" if "Length" in rule else "")
        return f"{words[rule]} {value}{unit}"
    if rule == "pattern":
        return f"a name like {value}"
    if rule == "uniqueItems":
        return "no value twice"
    if rule == "oneOf":
        return error.schema.get("description", "another form")
    return f"{rule} {_shown(value)}"
