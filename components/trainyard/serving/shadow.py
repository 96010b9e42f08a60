"""A shadow: a second version that is asked what the one that serves was asked, and whose answers are only logged.

No answer to a client waits for it. What its bounds cannot hold is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from trainyard import events
from trainyard.errors import ConfigurationError, bug_sentence
from trainyard.serving.answer_log import AnswerLog, memory
from trainyard.serving.batches import Batcher, Overloaded
from trainyard.serving.records import Row
from trainyard.serving.versions import LoadedModel, ServingVersion
from trainyard.steps.predict.pushed_model import PushedModel

_MOST_BYTES = 64 << 20  # of rows that wait for the shadow; chosen


class Shadow:
    """Asks the version that `serving` keeps, and writes its answers to `log`."""

    def __init__(self, serving: ServingVersion, log: AnswerLog, registry: CollectorRegistry) -> None:
        self._serving, self._log = serving, log
        self._batcher = Batcher(lambda _: None, may_block=False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._pair: tuple[LoadedModel, LoadedModel] | None = None
        self._failure, self._said = "", ""
        self._rows = Counter(
            "trainyard_shadow_rows",
            "Rows for the shadow: answered, refused or dropped.",
            ("result",),
            registry=registry,
        )

    def offer(self, model: LoadedModel, rows: Sequence[Row], request_id: str) -> None:
        """Ask the shadow `rows`, which `model` answered, at once, whatever the state of the shadow.

        A shadow that is `model`, or does not suit it since one of them was replaced, is not asked.
        """
        shadow, size = self._serving.model, memory(rows)
        if shadow.digest == model.digest or not self._suits(model, shadow):
            return
        if self._bytes + size > _MOST_BYTES:
            self._count("dropped", rows)
            return
        self._bytes += size
        task = asyncio.create_task(self._ask(shadow, rows, request_id, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait until all answers are logged, at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _ask(self, shadow: LoadedModel, rows: Sequence[Row], request_id: str, size: int) -> None:
        try:
            answer = await self._batcher.answer(shadow, rows)
        except Overloaded:
            self._count("dropped", rows)
        except Exception as error:  # noqa: BLE001 - the shadow must not end the server
            self._count("refused", rows)
            self._say(f"Version {shadow.number}, the shadow, cannot answer: {bug_sentence(error)}")
        else:
            if isinstance(answer, list):
                self._count("refused", rows)
            else:
                self._count("answered", rows)
                self._log.add(shadow, rows, answer, request_id, shadow=True)
        finally:
            self._bytes -= size

    def _suits(self, model: LoadedModel, shadow: LoadedModel) -> bool:
        if self._pair != (model, shadow):
            self._pair = model, shadow
            self._failure = difference(model.pushed, shadow.pushed)
            if self._failure:
                self._say(f"Version {shadow.number}, the shadow, is not asked: {self._failure}.")
        return not self._failure

    def _count(self, result: str, rows: Sequence[Row]) -> None:
        self._rows.labels(result).inc(len(rows))

    def _say(self, message: str) -> None:
        if message != self._said:
            events.emit("warning", message=message)
        self._said = message


def require_pair(model: PushedModel, shadow: PushedModel) -> None:
    """Raise `ConfigurationError` unless `shadow` can be asked what `model` is asked."""
    if found := difference(model, shadow):
        raise ConfigurationError(
            f"--shadow: {shadow.folder} has another signature than {model.folder}, {found}. Inputs and classes must be "
            "equal. Name a version of the same inputs and classes."
        )


def difference(model: PushedModel, shadow: PushedModel) -> str:
    """Return the first difference of the signatures of two models, '' if there is none.

    A request is read once, so the rules by which an input is read count, too.
    """
    if (model.pixels is None) != (shadow.pixels is None):
        return "one takes images and the other columns"
    inputs = [{feature.name: (feature.dtype, feature.column) for feature in each.inputs} for each in (model, shadow)]
    for name in inputs[0] | inputs[1]:
        if name not in inputs[0] or name not in inputs[1]:
            return f"only one of them has the input '{name}'"
        if inputs[0][name] != inputs[1][name]:
            return f"the input '{name}' has another type or is read by other rules"
    if [*inputs[0]] != [*inputs[1]]:
        return "the inputs have another order"
    if model.time_zone != shadow.time_zone:
        return f"its time zone is {shadow.time_zone} instead of {model.time_zone}"
    for name in ("labels", "label_separator", "targets"):
        if getattr(model, name) != getattr(shadow, name):
            return f"{name.replace('_', ' ')} differ"
    return ""
