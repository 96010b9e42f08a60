"""A training on a bucket's examples that come while it trains: real servers, small shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import train_folders
from object_stores import Request, Store
from test_train_shard_ranges import recipe, streamed

from trainyard import events
from trainyard.data.examples import open_examples
from trainyard.errors import DataError, TransientError
from trainyard.graph import remedy
from trainyard.steps.train.input import input as training_input
from trainyard.steps.train.input.input import Input
from trainyard.steps.train.input.shard_ranges import Feed
from trainyard.steps.train.peers.settings import Rank
from trainyard.steps.train.process import train_in_process
from trainyard.storage import cache, storage
from trainyard.storage.buckets import objects, stores

__all__ = ["streamed"]
# What streams asks both protocols alike; test_buckets.py holds them to the same behaviour.
GS, S3 = (pytest.mark.parametrize("served", [kind], indirect=True) for kind in ("gs", "s3"))
BATCH = 16  # of as many shard ranges


@contextmanager
def fed(uri: str, batch: int = BATCH, epochs: int = 2) -> Iterator[Input]:
    """Give the input of a training alone on the examples in the bucket."""
    alone, settings = Rank(0, 1), recipe(batch, epochs=epochs)
    names = training_input.streamed_files(settings, uri, alone)
    stream = storage.stream(uri, names, remedy("preprocess"))
    assert stream is not None
    folder = str(storage.local(uri, only=training_input.needed_files(settings, uri, alone, streamed=True)))
    feed = Feed(stream, folder)
    with stream, feed.errors(lambda: None):
        yield Input(settings, open_examples(folder), None, feed=feed)


def labels(data: Input, start: int = 0) -> list[list[int]]:
    return [[int(label) for label in batch] for _, batch, _ in data.train(start)]


@pytest.fixture
def uri(store: Store, tmp_path: Path) -> str:
    return train_folders.numbers(f"{store.uri}/{tmp_path.name}/examples", [16] * 24)


def in_cache() -> int:
    total = 0
    with cache.locked(cache.folder()):  # so that nothing but empty files goes or is renamed meanwhile
        for path in cache.folder().rglob("*"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
    return total


def is_shard(request: Request, split: str = "train") -> bool:
    return request.method == "GET" and f"{split}-000" in request.path and "manifest" not in request.path


@GS
def test_the_first_batch_comes_before_the_last_shard(store: Store, uri: str) -> None:
    asked: list[str] = []
    late: list[str] = []
    released = threading.Event()

    def hold(request: Request) -> None:
        if is_shard(request):
            shard = request.path.partition("?")[0]
            asked.extend([] if shard in asked else [shard])
            if shard in asked[20:] and not released.wait(60):
                late.append(shard)

    store.before = hold
    with fed(uri) as data:
        batches = iter(data.train(0))
        first = next(batches)[1].numpy()
        assert not late and len(asked) < 48
        released.set()
        rest = [list(batch[1].numpy()) for batch in batches]
    local = open_examples(str(storage.local(uri)))
    assert [list(first), *rest] == labels(Input(recipe(BATCH), local, None))


@S3
def test_a_run_that_goes_on_in_the_middle_sees_what_it_would_have_seen(uri: str) -> None:
    with fed(uri) as data:
        whole = labels(data)
        assert labels(data, 30) == whole[30:]


@GS
def test_the_bound_holds_and_shards_come_again(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = storage.require(uri).files
    shard = max(file.bytes for name, file in files.items() if name.endswith(".tfrecord"))
    with fed(uri, epochs=4) as data:
        assert data.feed is not None
        bound = in_cache() + 20 * shard
        monkeypatch.setenv("TRAINYARD_CACHE_SIZE", str(bound))
        batches = []
        for _, batch, _ in data.train(0):
            batches.append([int(label) for label in batch])
            assert in_cache() <= bound
        assert data.feed.progress()["shards_fetched"] > data.feed.progress()["shards"] == 48
    local = open_examples(str(storage.local(uri)))
    assert batches == labels(Input(recipe(BATCH, epochs=4), local, None))


@S3
def test_a_shard_that_is_damaged_gone_or_out_of_reach_ends_the_training_as_ever(
    store: Store, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, prefix = stores.locate(uri)
    name = next(item.name for item in bucket.list(f"{prefix}/").objects if "train-00005" in item.name)
    content = bucket.read_up_to(name, 0, 1 << 20)
    bucket.write(name, bytes(len(content)))
    with pytest.raises(DataError, match=r"train-00005.*differs from its manifest"), fed(uri) as data:
        labels(data)
    with pytest.raises(DataError, match=r"is gone .* --from preprocess"), fed(uri) as data:
        bucket.delete(name)
        labels(data)
    bucket.write(name, content)
    monkeypatch.setattr(objects, "DEADLINE_SECONDS", 0.5)
    with pytest.raises(TransientError, match=r"cannot be reached"), fed(uri) as data:
        store.fault = lambda request: "503" if is_shard(request) else None
        labels(data)
    store.calm()
    with fed(uri) as data:
        assert len(labels(data)) == 48


@GS
def test_a_whole_training_streams_and_says_what_it_has_fetched(
    store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = train_folders.digits(f"{store.uri}/{tmp_path.name}/examples", limit=320, shards=8)
    output = tmp_path / "output"
    output.mkdir()
    train_in_process(recipe(BATCH, epochs=1), uri, str(tmp_path / "checkpoints"), output)
    assert (output / "model.keras").is_file()
    progress = events.last(capfd.readouterr().err, "progress", "shards_fetched")
    assert progress is not None and progress["shards"] == 16  # of train and eval; none of test
