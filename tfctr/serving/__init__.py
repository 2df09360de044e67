"""Serving: a SavedModel or bundle run from C++, without the cost of TensorFlow's Python session."""

from tfctr.serving.session import ServingSession
from tfctr.serving.signature_info import Feature, Input, Output

__all__ = ["Feature", "Input", "Output", "ServingSession"]
