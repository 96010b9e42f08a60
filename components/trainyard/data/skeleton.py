"""The variables of a model, without the memory that they take."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import keras


def skeleton(build: Callable[[], keras.Model]) -> keras.Model:
    """Return the model that `build` makes, whose variables have shapes and dtypes but no values.

    It is built in another thread: Keras keeps a list of variables without values for each thread, gives all of
    them their values with the thread's next model, and numbers the names of layers for each thread.
    """

    def without_values() -> keras.Model:
        with keras.StatelessScope(initialize_variables=False):
            return build()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(without_values).result()
