"""The TensorFlow side of the contract between the steps: example shards and the transform graph, as tf.data."""

import os

# Both are read when TensorFlow is imported: Keras 3 (importing tf.Transform would choose Keras 2), and no banner.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
