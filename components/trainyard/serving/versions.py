"""The version that serves: found, loaded and replaced while requests are answered."""

from __future__ import annotations

import asyncio
import time

from trainyard import events
from trainyard.errors import TrainyardError, bug_sentence
from trainyard.serving.loaded import LoadedModel
from trainyard.steps.predict.pushed_model import version_folder

_AGAIN_SECONDS = 60.0  # chosen: a version that could not be loaded costs a core for seconds


class ServingVersion:
    """The model that `version_folder` finds for `folder`, which is looked at again every `seconds`."""

    def __init__(self, folder: str, seconds: float) -> None:
        """Load it. Raises `DataError` if there is none or it is damaged."""
        self._folder, self._seconds = folder, seconds
        self._failed = ("", 0.0)
        self.model = LoadedModel(version_folder(folder))
        self.reloads, self.failure = 0, ""

    async def watch(self) -> None:
        """Replace the model whenever another version serves. One that cannot be loaded leaves the old one in place."""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await asyncio.to_thread(self._update)
            except TrainyardError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a new version, the old one serves on
                self._fail(bug_sentence(error))

    def _update(self) -> None:
        path = version_folder(self._folder)
        failed, at = self._failed
        if path == self.model.pushed.folder:
            self.failure, self._failed = "", ("", 0.0)
            return
        if path == failed and time.monotonic() - at < _AGAIN_SECONDS:
            return
        self._failed = (path, time.monotonic())
        self.model = LoadedModel(path)
        self.reloads += 1
        self.failure, self._failed = "", ("", 0.0)
        events.emit("serving", version=self.model.number, folder=path, digest=self.model.digest)

    def _fail(self, message: str) -> None:
        if message != self.failure:
            events.emit("warning", message=f"Version {self.model.number} serves on: {message}")
        self.failure = message
