"""TF Serving's ``--model_config_file``: protobuf text of ModelServerConfig to our models.

    model_config_list {
      config {
        name: "ranker" base_path: "/models/ranker" model_platform: "tensorflow"
        model_version_policy { specific { versions: 3 versions: 4 } }
        version_labels { key: "stable" value: 3 }
      }
    }

Without a policy the newest version is served, as TF Serving does. What a server here can't honour (another platform,
request logging, custom configurations) is refused, not ignored.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tfctr.errors import UsageError
from tfctr.serving.server import config_check
from tfctr.serving.server.config import ModelConfig


def read(path: Path) -> tuple[ModelConfig, ...]:
    """The models of the file ``path``.

    Raises:
      UsageError: names the file, the line or the model, what came and what was expected.
    """
    return parse(config_check.read_text(path, "model config"), str(path), path.parent)


def parse(text: str, where: str, folder: Path) -> tuple[ModelConfig, ...]:
    """As :func:`read`; relative base paths are relative to ``folder``."""
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    config = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise UsageError(f"{where}: {_words(str(error), config.DESCRIPTOR)}") from error
    if config.WhichOneof("config") == "custom_model_config":
        raise UsageError(f"{where}: custom_model_config: this server knows model_config_list only")
    if not config.model_config_list.config:
        raise UsageError(f"{where}: no model in it; expected model_config_list {{ config {{ ... }} }}")
    return tuple(model(one, f"{where}: config {number}", folder) for number, one in enumerate(models_of(config)))


def models_of(config: Any) -> list[Any]:
    """The ModelConfig messages of a ModelServerConfig (HandleReloadConfigRequest sends one too)."""
    return list(config.model_config_list.config)


def model(message: Any, where: str, folder: Path = Path()) -> ModelConfig:
    """One model of a ModelServerConfig."""
    if not message.name:
        raise UsageError(f"{where}: it has no name")
    where = f"{where} ({message.name!r})"
    if not message.base_path:
        raise UsageError(f"{where}: it has no base_path")
    if message.model_platform not in ("", "tensorflow"):
        raise UsageError(f"{where}: model_platform is {message.model_platform!r}, expected 'tensorflow'")
    if message.model_type not in (0, 1):  # MODEL_TYPE_UNSPECIFIED, TENSORFLOW: what came before model_platform
        raise UsageError(f"{where}: model_type is {message.model_type}, expected TENSORFLOW")
    if message.HasField("logging_config"):
        raise UsageError(f"{where}: logging_config: this server does not log the contents of requests")
    config_check.check_name(message.name, where)
    return ModelConfig(
        name=message.name,
        path=folder / message.base_path,
        versions=_versions(message.model_version_policy, where),
        labels=dict(message.version_labels),
    )


def _versions(policy: Any, where: str) -> Any:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return "all"
    if kind == "specific":
        numbers = tuple(policy.specific.versions)
        if not numbers or min(numbers) < 0:
            raise UsageError(f"{where}: model_version_policy.specific has versions {list(numbers)}, expected some >= 0")
        return numbers
    return {"latest": policy.latest.num_versions or 1}


def _words(message: str, descriptor: Any) -> str:
    """The parser's own message (line:column), with the nearest known field where it has one."""
    unknown = re.search(r'Message type "([\w.]+)" (?:has no field named|does not contain a field) "(\w+)"', message)
    if unknown is None:
        return message
    found = _find(descriptor, unknown[1], set())
    return message.rstrip(".") + (config_check.did_you_mean(unknown[2], found.fields_by_name) if found else "")


def _find(descriptor: Any, full_name: str, seen: set[str]) -> Any:
    if descriptor.full_name == full_name:
        return descriptor
    seen.add(descriptor.full_name)
    inner = [field.message_type for field in descriptor.fields if field.message_type]
    found = (_find(one, full_name, seen) for one in inner if one.full_name not in seen)
    return next((one for one in found if one is not None), None)
