"""Batches of requests: what waits while a model is busy is answered at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trainyard.readers.rows import BadRow
from trainyard.serving.records import Row
from trainyard.serving.versions import LoadedModel
from trainyard.steps.predict.source import Array

_MOST_WAITING = 1024  # requests; chosen: seconds of work for a small model
_SHORT_SECONDS = 0.005  # chosen: all other requests wait meanwhile


class Overloaded(Exception):
    """More requests wait than are taken."""


@dataclass(frozen=True)
class _Job:
    model: LoadedModel
    rows: Sequence[Row]
    answer: asyncio.Future[Array | list[BadRow]]


class Batcher:
    """Asks models, one batch at a time. measure: called with the number of rows of each batch.

    A thread asks, so that requests are read meanwhile. A record that is alone is answered without it if `may_block` and
    the last batch was fast: waking the thread and waiting for it costs a tenth of the answer.
    """

    def __init__(self, measure: Callable[[int], object], *, may_block: bool = True) -> None:
        self._measure, self._may_block = measure, may_block
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
                model, rows, start = jobs[0].model, [job.rows for job in jobs], time.monotonic()
                if self._may_block and len(jobs) == len(rows[0]) == 1 and model.seconds < _SHORT_SECONDS:
                    answers = model.answer(rows)
                else:
                    answers = await loop.run_in_executor(self._thread, model.answer, rows)
                model.seconds = time.monotonic() - start
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
        """Return the next request for a model, and those behind it that fit into its batch."""
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
