"""Device strings: what ``--device-map`` may say, and what TensorFlow can run where."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.framework import kernels, op_def_registry

from tfctr.errors import UsageError

PLACES = ("sparse", "dense")
_LAST_INDEX = 2**31 - 1  # what TensorFlow reads as the number of a device
_ANY_DEVICE = "DEFAULT"  # kernels of host memory that every device type takes


@dataclasses.dataclass(frozen=True)
class DeviceMap:
    """Canonical device strings ("/device:CPU:0") of the two sides."""

    sparse: str
    dense: str

    @property
    def one_device(self) -> bool:
        return self.sparse == self.dense

    @property
    def dense_type(self) -> str:
        """ "CPU", "GPU" or another device type that TensorFlow knows here."""
        return str(tf.DeviceSpec.from_string(self.dense).device_type)


def device_map(given: Mapping[str, str]) -> DeviceMap | None:
    """``ConvertOptions.device_map`` as devices; None where it is empty. ``sparse`` may be left out: /CPU:0.

    UsageError for other parts, strings that name no device, device types that this TensorFlow does not have, and a
    sparse device that is no CPU.
    """
    if not given:
        return None
    for place in given:
        if place not in PLACES:
            raise UsageError(f"--device-map {place}=...: no part {place!r}; the parts are {' and '.join(PLACES)}")
    if "dense" not in given:
        raise UsageError("--device-map: says nothing of the dense part; expected sparse=/CPU:0,dense=DEVICE")
    sparse = _parse("sparse", given.get("sparse", "/CPU:0"))
    dense = _parse("dense", given["dense"])
    if sparse.device_type != "CPU":
        raise UsageError(
            f"--device-map sparse={given['sparse']}: embedding tables, strings and vocabularies need a CPU; expected a "
            "device such as /CPU:0"
        )
    return DeviceMap(sparse.to_string(), dense.to_string())


def canonical_device(device: str) -> str:
    """The one spelling of a device string; the string itself where TensorFlow can't parse it."""
    try:
        return str(tf.DeviceSpec.from_string(device).to_string())
    except ValueError:
        return device


def _parse(place: str, device: str) -> tf.DeviceSpec:
    try:
        spec = tf.DeviceSpec.from_string(device)
    except ValueError as error:
        raise UsageError(f"--device-map {place}={device}: no device {device!r}; expected one such as /CPU:0") from error
    if not spec.device_type or spec.device_index is None or spec.device_index > _LAST_INDEX:
        raise UsageError(f"--device-map {place}={device}: no device {device!r}; expected one such as /CPU:0")
    if spec.job not in (None, "localhost") or spec.replica or spec.task:
        raise UsageError(
            f"--device-map {place}={device}: a device of another process; a bundle runs in one, so expected a device "
            "such as /CPU:0"
        )
    known = _device_types()
    if spec.device_type not in known:
        raise UsageError(
            f"--device-map {place}={device}: no device type {spec.device_type!r}; TensorFlow here knows "
            f"{', '.join(sorted(known))}"
        )
    return spec


def _device_types() -> set[str]:
    """CPU and GPU, whether this machine has one or not (bundles are made elsewhere), and what plug-ins add."""
    return {"CPU", "GPU"} | {d.device_type for d in tf.config.list_physical_devices()}


def runs_on(node: node_def_pb2.NodeDef, device_type: str) -> bool:
    """Whether TensorFlow has a kernel of this node for a device type; True for function calls and unknown ops, which
    can't be told.
    """
    found = _kernels(node.op)
    op_def = op_def_registry.get(node.op)
    if device_type == "CPU" or not found or op_def is None:
        return True
    return any(k.device_type in (device_type, _ANY_DEVICE) and _fits(k, node, op_def) for k in found)


@functools.cache
def _kernels(op: str):  # type: ignore[no-untyped-def]
    return list(kernels.get_registered_kernels_for_op(op).kernel)


def _fits(kernel, node: node_def_pb2.NodeDef, op_def: op_def_pb2.OpDef) -> bool:  # type: ignore[no-untyped-def]
    defaults = {a.name: a.default_value for a in op_def.attr}
    for constraint in kernel.constraint:
        allowed = set(constraint.allowed_values.list.type)
        value = node.attr[constraint.name] if constraint.name in node.attr else defaults.get(constraint.name)
        if value is None:
            return False
        types = list(value.list.type) or [value.type]
        if not set(types) <= allowed:
            return False
    return True
