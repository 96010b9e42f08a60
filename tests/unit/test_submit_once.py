"""Commands that submit one name at the same moment agree on one run.

The server stands for Kubeflow's in what its source says (2.17): it gives one name to any number of runs, shows a run
from the moment that it is stored, and counts whole seconds.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import kfp_server_api as kfp
import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard_control.compiler.compilation import RunMetadata, Submission
from trainyard_control.kubeflow import kubeflow_api as submitting
from trainyard_control.kubeflow.kubeflow_api import submit

SUBMISSION = Submission(
    "trainyard-digits", "kind-1", "package", "nightly", environments.load("kind"), RunMetadata("digits", "kind")
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Server:
    """Runs in memory. meet: all commands have created theirs before any of them looks."""

    runs: list[Any] = field(default_factory=list)
    meet: threading.Barrier | None = None
    _one_request: threading.Lock = field(default_factory=threading.Lock)

    def upload(self, pipeline: str, version: str, _package: str) -> tuple[str, str]:
        return pipeline, version

    def experiment(self) -> str:
        return "e"

    def find_runs(self, name: str) -> list[Any]:
        return [run for run in reversed(self.runs) if run.display_name == name]

    def create_run(self, run: Any) -> Any:
        if self.meet:
            self.meet.wait(60)
        with self._one_request:  # else two of them count as many runs, and get one id
            made = self.store(f"run-{len(self.runs)}", run.pipeline_version_reference.pipeline_version_id)
        if self.meet:
            self.meet.wait(60)
        return made

    def store(self, run_id: str, version: str = "kind-1", created: datetime = NOON) -> Any:
        reference = kfp.V2beta1PipelineVersionReference(pipeline_id="p", pipeline_version_id=version)
        self.runs.append(
            kfp.V2beta1Run(
                run_id=run_id,
                display_name="nightly",
                created_at=created,
                state="RUNNING",
                pipeline_version_reference=reference,
            )
        )
        return self.runs[-1]

    def delete(self, run_id: str) -> None:
        with self._one_request:
            self.runs = [run for run in self.runs if run.run_id != run_id]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "_POLL_SECONDS", 0.001)


def sent(server: Any, submission: Submission = SUBMISSION) -> tuple[str, bool]:
    return submit(submission, server)


def test_commands_that_all_made_a_run_before_they_looked_keep_one() -> None:
    server = Server(meet=threading.Barrier(4))
    with ThreadPoolExecutor(4) as four:
        made = list(four.map(lambda _: sent(server), range(4)))
    assert len(server.runs) == 1
    assert {run_id for run_id, _ in made} == {server.runs[0].run_id}
    assert sorted(attached for _, attached in made) == [False, True, True, True]


def test_a_run_that_was_stored_late_gives_way_to_one_whose_command_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "_SETTLE_SECONDS", 0.01)
    server = Server()

    def create(run: Any) -> Any:
        """Be older than the other run, and stored after the other command has looked."""
        server.store("z-younger", created=NOON.replace(second=1))
        return Server.create_run(server, run)

    server.create_run = create  # type: ignore[method-assign]
    done = sent(server)
    assert done == ("z-younger", True)
    assert [run.run_id for run in server.runs] == ["z-younger"]


def test_the_younger_of_two_with_other_content_is_withdrawn_and_refused() -> None:
    server = Server()

    def create(run: Any) -> Any:
        server.store("a-older", version="kind-2", created=NOON.replace(hour=11))
        return Server.create_run(server, run)

    server.create_run = create  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="is of another recipe, environment or code"):
        sent(server)
    assert [run.run_id for run in server.runs] == ["a-older"]


def test_a_failed_run_of_the_name_is_no_rival() -> None:
    server = Server()
    server.store("old", created=NOON.replace(hour=11)).state = "FAILED"
    assert sent(server) == ("run-1", False)
    assert sent(server) == ("run-1", True)
