"""Cuts what comes one by one into batches that are neither too long nor too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

_Item = TypeVar("_Item")
_Other = TypeVar("_Other")


def batched(
    items: Iterable[_Item | _Other], kind: type[_Item], size: Callable[[_Item], int], limit: int, size_limit: int
) -> Iterator[list[_Item] | _Other]:
    """Yield the items of `kind` in batches of at most `limit` items and, but for one alone, `size_limit`.

    What is of another kind is yielded as it comes.
    """
    batch: list[_Item] = []
    batch_size = 0
    for item in items:
        if not isinstance(item, kind):
            yield cast(_Other, item)
            continue
        item_size = size(item)
        if batch and (len(batch) == limit or batch_size + item_size > size_limit):
            yield batch
            batch, batch_size = [], 0
        batch.append(item)
        batch_size += item_size
    if batch:
        yield batch
