"""The errors that libraries raise for a damaged, foreign or hostile model file."""

from __future__ import annotations

import struct
import zipfile
import zlib

import tensorflow as tf

UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tf.errors.OpError,
)
"""Of Keras, HDF5, zipfile and TensorFlow."""

_LONGEST = 200  # characters; chosen


def reason(error: BaseException) -> str:
    """Return the first line of `error` for a sentence."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:_LONGEST]
