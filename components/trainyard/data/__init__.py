"""The TensorFlow side of the contract between the steps: example shards and the transform graph, as tf.data."""

import os
import sys

# Both are read when TensorFlow is imported: Keras 3 (importing tf.Transform would choose Keras 2), and no banner.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Keras imports scikit-learn for its wrappers wherever it is installed (keras 3.15, keras/src/wrappers/fixes.py): measured,
# a quarter of TensorFlow's import time for what no step uses. Not hidden from anybody afterwards.
if "sklearn" not in sys.modules:
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        import tensorflow  # noqa: F401
    finally:
        del sys.modules["sklearn"]
