"""ONNX tower -> how OpenVINO runs it on this machine. ``tune`` is the way in.

options  what the engine is told: static variants, padding, pieces; which variant runs which rows
choose   the options from measured times; whether OpenVINO or TensorFlow is faster
measure  the times
tuning   the three together, within a number of seconds
"""

from export.openvino.tuning import Tuned, tune

__all__ = ["Tuned", "tune"]
