"""Fetches a bucket's shards while the input pipelines read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf

from trainyard.errors import TransientError
from trainyard.storage import storage


@dataclass(eq=False)
class Feed:
    """The shards of examples in a bucket, fetched by `files`.

    root: the local folder of the other example files; the names of shards are relative to it.
    """

    files: storage.FileStream
    root: str

    def follow(self, epochs: Iterator[list[str]], readers: int) -> None:
        """Fetch in the order of `epochs`, lists of paths below `root`, for this number of `readers`."""
        self.files.follow(([self._name(path) for path in epoch] for epoch in epochs), readers)

    def progress(self) -> dict[str, int]:
        """Return the number of shards and the number fetched so far, repeated fetches included."""
        return {"shards": self.files.files, "shards_fetched": self.files.fetched}

    def path(self, files: list[str], part: tf.Tensor, shard_range: tf.Tensor, open_files: int) -> tf.Tensor:
        """Return the path, a scalar string, of the shard slice `part` (file number, before, count) once it is local.

        open_files: number of files that `shard_range` reads at a time.
        """

        def wait(number: int, count: int, shard_range: int) -> bytes:
            if count == 0:
                return b""  # nothing opens it
            return os.fsencode(self.files.open(self._name(files[number]), (files[0], int(shard_range)), open_files))

        path = tf.numpy_function(wait, [part[0], part[2], shard_range], [tf.string])
        path[0].set_shape(())
        return path[0]

    def with_threads(self, records: tf.data.Dataset[tf.Tensor], readers: int) -> tf.data.Dataset[tf.Tensor]:
        """Return `records` with a private thread pool, so that waiting `readers` block no step."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = readers + (os.cpu_count() or 1)
        return records.with_options(options)

    @contextmanager
    def errors(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Raise the error of a fetch instead of TensorFlow's; call `waiting` while a reader waits.

        Raises `TransientError` if the local copy of a shard is damaged; it is fetched again.
        """
        self.files.waiting = waiting
        try:
            yield
        except Exception as error:
            if self.files.error is not None:
                raise self.files.error from error
            if isinstance(error, tf.errors.DataLossError) and (damaged := self.files.discard_damaged()):
                raise TransientError(
                    f"{self.files.uri}: this machine's copy is damaged ({', '.join(damaged)}). "
                    "Run the same command again: it is fetched again."
                ) from error
            raise

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.root)
