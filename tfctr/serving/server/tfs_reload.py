"""TF Serving's HandleReloadConfigRequest: labels and versions of the models that are served.

Models can't be added or moved this way: a message over the network would choose what files of the machine are loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfctr.errors import InputError


def apply_config(manager: Any, config: Any) -> None:
    """Does what a ModelServerConfig asks for: versions of a ``specific`` policy are loaded, any other policy makes the
    folder be looked at now, labels are moved.

    InputError, before anything is changed: a model that is not served or lies elsewhere, a policy or label without
    versions, a configuration that is no list of models.
    """
    if config.WhichOneof("config") != "model_config_list" or not config.model_config_list.config:
        raise InputError("config: expected a model_config_list with one or more models")
    models = config.model_config_list.config
    for model in models:
        _check(manager, model)
    for model in models:
        if model.model_version_policy.WhichOneof("policy_choice") == "specific":
            for version in model.model_version_policy.specific.versions:
                manager.load(model.name, version)
        else:
            manager.poll(model.name)
        for label, version in sorted(model.version_labels.items()):
            manager.set_label(model.name, label, version)


def _check(manager: Any, model: Any) -> None:
    (status,) = manager.status(model.name)
    if model.base_path:
        folders = {Path(one.describe["folder"]) for one in status.versions if one.describe}
        asked = Path(model.base_path)
        if not any(asked in (folder, folder.parent) for folder in folders):
            raise InputError(
                f"model {model.name!r}: base_path {model.base_path!r} is not where it is served from; models are added "
                "and moved in the server's configuration"
            )
    policy = model.model_version_policy
    if policy.WhichOneof("policy_choice") == "specific" and not policy.specific.versions:
        raise InputError(f"model {model.name!r}: model_version_policy.specific names no versions")
