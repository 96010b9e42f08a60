"""The first step: checks the records, splits them, analyses the training split and writes example shards."""

import trainyard.data  # noqa: F401 - sets what TensorFlow reads while it is imported
