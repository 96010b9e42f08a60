"""A storage with the outputs and the records of runs, for the tests of `trainyard prune`."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.origin import origin
from trainyard.contract.version import Champion, set_champion
from trainyard.graph import OUTPUTS, STEPS
from trainyard.spec import recipe as recipes
from trainyard.storage import storage
from trainyard_control.local import retention

NOW = datetime(2026, 1, 11, tzinfo=UTC)
RECIPE = recipes.load("digits")


@dataclass
class Storage:
    """Runs of digits below `root`; that of day n has the outputs <step>/nnnn."""

    root: str

    def uri(self, name: str) -> str:
        return storage.join(self.root, "digits", name)

    def outputs(self, day: int) -> list[str]:
        return sorted(f"{step}/{str(day) * 4}" for step in OUTPUTS)

    def run(self, day: int, version: int | None = None, shared: Collection[str] = ()) -> None:
        """Leave a run that ended on the `day` of January, and pushed `version` where there is one."""
        folders: dict[str, str] = {}
        for step in OUTPUTS:
            folders[step] = self.uri(f"{step}/{'0000' if step in shared else str(day) * 4}")
            if storage.committed(folders[step]):
                continue
            inputs = {STEPS[name].argument: folders[name] for name in STEPS[step].reads}
            made_from = origin(RECIPE, step, inputs).model_dump()
            with storage.stage(folders[step], f"trainyard.{step}", origin=made_from) as folder:
                (folder / "content").write_text(step * day)
                if step == "push":
                    Pushed(path="", version=version or 0, digest=f"digest {day}", already=False).write(folder)
        record = {"folders": folders, "ended": f"2026-01-{day:02}T00:00:00+00:00", "pushed": None}
        if version:
            pushed = self.uri(f"models/{version}")
            storage.write_text(f"{pushed}/saved_model.pb", "model")
            set_champion(self.uri("models"), Champion(version=version, path=pushed, digest=f"digest {day}", metrics={}))
            record["pushed"] = {"path": pushed, "version": version}
        self._record(day, record)

    def fail(self, day: int) -> None:
        """Leave a run that failed in train."""
        self._record(day, {"folders": {}, "unfinished": {"train": self.uri(f"train/{str(day) * 4}")}})

    def begin(self, name: str) -> None:
        """Leave a run without a record."""
        storage.write_text(self.uri(f"runs/{name}/recipe.yaml"), "name: digits")

    def plan(self, keep: int) -> list[str]:
        return [removal.name for removal in retention.plan(self.root, keep, now=NOW).removals]

    def prune(self, keep: int) -> None:
        plan = retention.plan(self.root, keep, now=NOW)
        for removal in plan.removals:
            assert retention.remove(self.root, removal, plan.runs["digits"]) == ""

    def _record(self, day: int, record: object) -> None:
        storage.write_text(self.uri(f"runs/202601{day:02}-000000-aaaa/run.json"), json.dumps(record))
