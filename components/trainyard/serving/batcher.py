"""Batches requests without waiting for more: what came while the model was busy is its next batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainyard.readers.rows import BadRow
from trainyard.serving.loaded import LoadedModel
from trainyard.serving.records import Row
from trainyard.steps.predict.reading.batches import Array

_MOST_WAITING = 1024  # requests; chosen: seconds of work for a small model


class Overloaded(Exception):
    """More requests wait than are taken."""


@dataclass(frozen=True)
class _Job:
    model: LoadedModel
    rows: Sequence[Row]
    answer: asyncio.Future[Array | list[BadRow]]


class Batcher:
    """Asks models, one batch at a time. measure: called with the number of rows of each batch."""

    def __init__(self, measure: Callable[[int], object]) -> None:
        self._measure = measure
        self._waiting: deque[_Job] = deque()
        self._thread = ThreadPoolExecutor(1, "model")
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, model: LoadedModel, rows: Sequence[Row]) -> Array | list[BadRow]:
        """Return the outputs (n, ...) for `rows`, or those without one. Raises `Overloaded`."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Overloaded
        job = _Job(model, rows, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await job.answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while jobs := self._next():
            self._measure(sum(len(job.rows) for job in jobs))
            try:
                answers = await loop.run_in_executor(self._thread, jobs[0].model.answer, [job.rows for job in jobs])
            except Exception as error:  # noqa: BLE001 - each request reports it
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
                continue
            for job, answer in zip(jobs, answers, strict=True):
                if not job.answer.done():  # its client may have gone
                    job.answer.set_result(answer)
        self._worker = None

    def _next(self) -> list[_Job]:
        """Return the next requests for one model: one, or several that a batch has room for."""
        jobs: list[_Job] = []
        rows = 0
        while self._waiting:
            job = self._waiting[0]
            rows += len(job.rows)
            if job.answer.done():
                rows -= len(job.rows)
            elif jobs and (rows > jobs[0].model.most_rows or job.model is not jobs[0].model):
                break
            else:
                jobs.append(job)
            self._waiting.popleft()
        return jobs
