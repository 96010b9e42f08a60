"""The TensorFlow side of the contract between the steps: example shards and the transform graph, as tf.data."""

import os
import warnings

from trainyard.data.importing import without

# Both are read when TensorFlow is imported: Keras 3 (importing tf.Transform would choose Keras 2), and no banner.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Read when OpenMP is loaded, with scikit-learn: its threads sleep while they wait for each other. By default they spin
# (libgomp manual, GOMP_SPINCOUNT), and trees for 100,000 rows took 33 s of CPU instead of 2.1 on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# TensorFlow and Keras import what they find installed, for things that no step calls: scikit-learn, which Keras takes
# for its wrappers (keras 3.15, keras/src/wrappers/fixes.py; measured, a quarter of TensorFlow's import time), pandas,
# which Keras takes as an input of fit (keras/src/trainers/data_adapters/array_slicing.py; a tenth), and JAX, unless it
# trains, which TensorFlow takes to convert its models (2.21, tensorflow/lite/python/util.py).
_unused = ["sklearn", "pandas"] if os.environ.get("KERAS_BACKEND") == "jax" else ["sklearn", "pandas", "jax"]
with without(*_unused):
    import tensorflow  # noqa: F401

# Inputs have names that no layer has (models/build.py). Keras says of each, at every load, that its key is another.
warnings.filterwarnings("ignore", "When providing `inputs` as a dict", UserWarning)
