"""What `trainyard prune` removes, and what it never touches."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.pruned_storage import NOW, Storage
from typer.testing import CliRunner

from trainyard.contract import keys
from trainyard.contract.pushed_versions import set_alias
from trainyard.contract.version import Champion, set_champion
from trainyard.errors import ConfigurationError
from trainyard.storage import storage
from trainyard_control.cli.main import app
from trainyard_control.local import retention


@pytest.fixture
def store(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "storage"))


def test_the_newest_runs_stay_with_their_outputs_and_the_others_go(store: Storage) -> None:
    for day in (1, 2, 3):
        store.run(day)
    assert store.plan(keep=2) == ["runs/20260101-000000-aaaa", *store.outputs(1)]
    store.prune(keep=2)
    assert store.plan(keep=2) == []
    assert all(storage.committed(store.uri(name)) for name in (*store.outputs(2), *store.outputs(3)))


def test_the_champion_stays_with_its_run_and_what_it_was_made_from(store: Storage) -> None:
    store.run(1, version=1)
    store.run(2)
    store.run(3)
    assert store.plan(keep=1) == ["runs/20260102-000000-aaaa", *store.outputs(2)]


def test_the_runs_of_a_version_with_an_alias_and_of_one_that_was_rolled_back_to_stay(store: Storage) -> None:
    for day in (1, 2, 3, 4):
        store.run(day, version=day)
    set_alias(store.uri("models"), "canary", 1)
    copied = {"run": "/moved/digits/runs/20260102-000000-aaaa", "restored": 2}
    with storage.stage(store.uri("models/5"), "trainyard.push", origin=copied) as folder:
        (folder / "saved_model.pb").touch()
    set_champion(store.uri("models"), Champion(version=5, path="5", digest="digest 2", metrics={}))
    assert store.plan(keep=1) == ["runs/20260103-000000-aaaa", *store.outputs(3)]


def test_the_champion_s_inputs_stay_though_its_run_is_forgotten(store: Storage) -> None:
    store.run(1, version=1)
    store.run(2)
    storage.remove(store.uri("runs/20260101-000000-aaaa"))
    assert store.plan(keep=1) == []


def test_outputs_that_several_runs_share_stay_while_one_of_them_does(store: Storage) -> None:
    store.run(1, shared=("preprocess",))
    store.run(2, shared=("preprocess",))
    assert store.plan(keep=1) == [
        "runs/20260101-000000-aaaa",
        *(name for name in store.outputs(1) if "pre" not in name),
    ]


def test_what_a_failed_run_would_go_on_from_stays(store: Storage) -> None:
    store.run(1)
    store.fail(2)
    output = store.uri("train/2222")
    beside = [f"{keys.checkpoints(output)}/state", keys.failure_record(output), keys.maker_record(output)]
    for uri in [*beside, f"{keys.parts(output)}/0"]:
        storage.write_text(uri, "half done")
    assert store.plan(keep=1) == ["runs/20260101-000000-aaaa", *store.outputs(1)]
    store.run(3)
    assert "train/2222" in store.plan(keep=1)
    store.prune(keep=1)
    assert storage.children(store.uri("train")) == ["3333"]


def test_while_a_run_may_be_going_on_no_output_of_its_recipe_goes(store: Storage) -> None:
    store.run(1)
    store.run(2)
    store.begin("20260110-000000-bbbb")
    plan = retention.plan(store.root, keep=1, now=NOW)
    assert [removal.name for removal in plan.removals] == ["runs/20260101-000000-aaaa", "runs/20260102-000000-aaaa"]
    assert "20260110-000000-bbbb may be active" in plan.notes[0]
    later = retention.plan(store.root, keep=1, now=datetime(2026, 3, 1, tzinfo=UTC))
    assert "train/1111" in [removal.name for removal in later.removals]


def test_a_run_of_the_cluster_goes_on_until_it_has_a_record(store: Storage) -> None:
    store.run(1)
    note = {"folder": "/elsewhere/digits/preprocess/aaaa", "seconds": None}
    storage.write_text(
        store.uri("runs/0f3c-uuid/preprocess.json"), json.dumps(note | {"time": "2026-01-09T00:00:00+00:00"})
    )
    assert "0f3c-uuid may be active" in retention.plan(store.root, keep=1, now=NOW).notes[0]
    assert not retention.plan(store.root, keep=1, now=NOW, over=lambda runs: runs).notes  # Kubeflow says so
    storage.write_text(keys.cancellation(store.uri("runs/0f3c-uuid")), "2026-01-09T00:01:00+00:00")
    ended = retention.plan(store.root, keep=1, now=NOW)
    assert not ended.notes and "runs/20260101-000000-aaaa" in [removal.name for removal in ended.removals]


def test_an_output_that_a_process_writes_stays(store: Storage) -> None:
    store.run(1)
    store.run(2)
    (first, *_) = [
        removal for removal in retention.plan(store.root, keep=1, now=NOW).removals if removal.kind == "output"
    ]
    with storage.lease(first.uri(store.root)):
        assert "is writing it" in retention.remove(store.root, first, ())
    assert storage.committed(first.uri(store.root))
    assert retention.remove(store.root, first, ()) == "" and storage.committed(first.uri(store.root)) is None


def test_an_abandoned_attempt_goes_and_its_output_stays(store: Storage) -> None:
    store.run(1)
    left = Path(store.uri("train/.staging/1111-0a1b2c3d/model.keras"))
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(1000))
    (attempt,) = retention.plan(store.root, keep=1, now=NOW).removals
    assert (attempt.kind, attempt.name, attempt.bytes) == ("attempt", "train/1111", 1000)
    assert retention.remove(store.root, attempt, ()) == "" and not left.exists()
    assert storage.committed(store.uri("train/1111"))


def test_the_command_says_what_would_go_and_removes_nothing(store: Storage, tmp_path: Path) -> None:
    store.run(1)
    store.run(2)
    (tmp_path / "here.yaml").write_text(f"{{target: local, storage: {store.root}}}")
    command = ["prune", "-e", str(tmp_path / "here.yaml"), "--keep", "1"]
    output = CliRunner().invoke(app, [*command, "--dry-run"]).stdout.splitlines()
    assert [line.split()[-1] for line in output[:-1]] == [f"digits/{name}" for name in store.plan(keep=1)]
    assert "would be deleted, 6 folders" in output[-1]
    answer = json.loads(CliRunner().invoke(app, [*command, "-o", "json"]).stdout)
    assert answer["bytes"] == sum(removal["bytes"] for removal in answer["removed"]) > 0 and not answer["dry_run"]
    assert "0 KiB  deleted, 0 folders" in CliRunner().invoke(app, command).stdout


def test_a_recipe_without_runs_is_refused(store: Storage) -> None:
    store.run(1)
    with pytest.raises(ConfigurationError, match=r"no runs of 'digit'\. There: digits\. Did you mean 'digits'\?"):
        retention.plan(store.root, 1, "digit")
