"""The TensorFlow side of the contract between the steps: example shards and the transform graph, as tf.data."""

import gc
import os
import sys

# Both are read when TensorFlow is imported: Keras 3 (importing tf.Transform would choose Keras 2), and no banner.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Read when OpenMP is loaded, with scikit-learn: its threads sleep while they wait for each other. By default they spin
# (libgomp manual, GOMP_SPINCOUNT), and trees for 100,000 rows took 33 s of CPU in place of 2.1 on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# TensorFlow and Keras import what they find installed, for things that no step calls. It is hidden while they are
# imported, and from nobody afterwards: scikit-learn, which Keras takes for its wrappers (keras 3.15,
# keras/src/wrappers/fixes.py; measured, a quarter of TensorFlow's import time), and JAX, unless it trains, which
# TensorFlow takes to convert its models (2.21, tensorflow/lite/python/util.py).
_unused = ["sklearn"] if os.environ.get("KERAS_BACKEND") == "jax" else ["sklearn", "jax"]
_hidden = [name for name in _unused if name not in sys.modules]
sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]
# What is imported stays: looking through it for garbage, now and at every later collection, finds none.
gc.disable()
try:
    import tensorflow  # noqa: F401
finally:
    gc.freeze()
    gc.enable()
    for name in _hidden:
        del sys.modules[name]
