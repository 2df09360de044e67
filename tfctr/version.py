"""The version of tfctr. Kept alone so that `tfctr --version` and the build read it without importing anything."""

__version__ = "0.1.0"

TENSORFLOW_MINOR = "2.21"
"""The one TensorFlow minor release the op library is built for: its C++ symbols carry names of that release."""
