"""Schedules as files: strictly read, and changed without a tick run twice or left out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import kfp_server_api
import pytest
from tests import small_documents
from typer.testing import CliRunner

from trainyard.contract import keys
from trainyard.contract.artifacts.evaluate import ClassThreshold
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.origin import origin
from trainyard.contract.pipeline import Pipeline
from trainyard.contract.statistics.drift import FeatureStatistics, Statistics
from trainyard.contract.version import EXTRA, Champion, content, set_champion
from trainyard.errors import ConfigurationError, DataError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.notify import Notify
from trainyard.spec.schedule import When
from trainyard.steps.check.run import run
from trainyard.storage import storage
from trainyard_control.cli.main import app
from trainyard_control.cluster import environments as clusters
from trainyard_control.compiler import compilation
from trainyard_control.kubeflow import schedules
from trainyard_control.kubeflow.schedules import (
    Action,
    Recurring,
    Schedule,
    _with_days,
    load,
    package,
    plan,
    removal,
    request,
)

NOW = datetime(2026, 3, 1, 3, 0, 30, tzinfo=UTC)
TEXT = "name: nightly\nrecipe: digits\nenvironment: kind\ncron: 0 3 * * *\n"


def there(name: str, enabled: bool = True, running: bool = False, last: datetime | None = None) -> Recurring:
    return Recurring(f"id-{name}", name, enabled, datetime(2026, 1, 1, tzinfo=UTC), last, running)


def read(tmp_path: Path, text: str) -> Schedule:
    file = tmp_path / "nightly.yaml"
    file.write_text(text)
    return load(file)


def done(actions: list[Action]) -> list[str]:
    return [f"{action.verb} {action.name}" for action in actions]


@pytest.mark.parametrize(
    ("cron", "fault"),
    [
        ("0 3 * *", "five fields are expected: minute hour day month weekday"),
        ("0 0 3 * * *", "five fields are expected"),
        ("60 3 * * *", "minute: '60' is not understood. Numbers are 0 to 59"),
        ("0 3 * * 7", "weekday: '7' is not understood. Numbers are 0 to 6"),
        ("0 5-3 * * *", "hour: '5-3' is not understood"),
        ("0 3 * * mon", "weekday: 'mon' is not understood"),
        ("*/0 3 * * *", "minute: '*/0' is not understood"),
    ],
)
def test_a_cron_expression_that_the_server_would_read_otherwise_is_refused(
    tmp_path: Path, cron: str, fault: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, TEXT.replace("0 3 * * *", f'"{cron}"'))
    assert "nightly.yaml:4: cron: " in str(error.value) and fault in str(error.value)


def test_a_good_expression_gets_the_servers_sixth_field(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT.replace("0 3 * * *", '"*/15 0-6,22 1 * 1-5"')).server_cron == "0 */15 0-6,22 1 * 1-5"


def test_files_are_found_beside_the_schedule_and_unknown_keys_refused(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT.replace("kind", "own.yaml")).environment == str(tmp_path / "own.yaml")
    with pytest.raises(ConfigurationError, match=r"unknown key. Did you mean 'paused'\?"):
        read(tmp_path, TEXT + "pause: true\n")


def test_nothing_is_done_where_the_server_has_just_that() -> None:
    assert done(plan("nightly.aaaaaaaa", False, [there("nightly.aaaaaaaa")], NOW)) == ["keep nightly.aaaaaaaa"]


def test_the_first_one_starts_now() -> None:
    assert plan("nightly.aaaaaaaa", False, [], NOW) == [Action("create", "nightly.aaaaaaaa", start=NOW)]


def test_a_changed_one_begins_where_the_old_one_stopped() -> None:
    tick = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    ran = plan("nightly.bbbbbbbb", False, [there("nightly.aaaaaaaa", last=tick)], NOW)
    assert done(ran) == ["disable nightly.aaaaaaaa", "create nightly.bbbbbbbb", "delete nightly.aaaaaaaa"]
    assert ran[1].start == tick, "the tick of 3:00 has run and runs no second time"
    late = plan("nightly.bbbbbbbb", False, [there("nightly.aaaaaaaa", last=tick - timedelta(days=1))], NOW)
    assert late[1].start == NOW - timedelta(seconds=60), "the tick of 3:00 was the old one's, which is disabled: run it"


def test_a_schedule_is_not_deleted_under_its_run() -> None:
    actions = plan("nightly.bbbbbbbb", False, [there("nightly.aaaaaaaa", running=True)], NOW)
    assert done(actions) == ["disable nightly.aaaaaaaa", "create nightly.bbbbbbbb", "keep nightly.aaaaaaaa"]
    after = plan("nightly.bbbbbbbb", False, [there("nightly.bbbbbbbb"), there("nightly.aaaaaaaa", enabled=False)], NOW)
    assert done(after) == ["keep nightly.bbbbbbbb", "delete nightly.aaaaaaaa"]


def test_a_new_one_that_is_paused_is_made_disabled_and_says_so(tmp_path: Path) -> None:
    (action,) = plan("nightly.aaaaaaaa", True, [], NOW)
    assert str(action) == "create nightly.aaaaaaaa (paused: it starts no runs until paused is removed)"
    schedule = read(tmp_path, TEXT + "paused: true\n")
    submission, _ = package(schedule, environments.load("kind"))
    assert request(schedule, action, submission, "e1", "p1", "v1").mode == kfp_server_api.RecurringRunMode.DISABLE
    (kept,) = plan("nightly.aaaaaaaa", True, [there("nightly.aaaaaaaa", enabled=False)], NOW)
    assert str(kept) == "keep nightly.aaaaaaaa (unchanged, paused)"


def test_one_that_was_paused_or_whose_apply_was_cut_short_runs_again_from_now_on() -> None:
    actions = plan("nightly.bbbbbbbb", False, [there("nightly.aaaaaaaa", enabled=False)], NOW)
    assert done(actions) == ["create nightly.bbbbbbbb", "delete nightly.aaaaaaaa"] and actions[0].start == NOW


def test_a_paused_one_and_a_removed_one_leave_nothing_enabled() -> None:
    assert done(plan("nightly.bbbbbbbb", True, [there("nightly.aaaaaaaa")], NOW)) == [
        "disable nightly.aaaaaaaa",
        "create nightly.bbbbbbbb",
        "delete nightly.aaaaaaaa",
    ]
    assert done(removal([there("nightly.aaaaaaaa", running=True)])) == [
        "disable nightly.aaaaaaaa",
        "keep nightly.aaaaaaaa",
    ]


@pytest.mark.parametrize(
    ("data", "zone"),
    [("", "Asia/Tokyo"), (", time_zone: +00:00", "+00:00"), (", time_zone: Asia/Seoul", "Asia/Seoul")],
)
def test_the_days_of_a_window_are_those_of_the_schedule_unless_the_data_have_a_zone(tmp_path, data, zone) -> None:
    source = "{format: csv, path: gs://b/%Y-%m-%d, window_days: 3, features: {x: {type: numeric}}"
    (tmp_path / "clicks.yaml").write_text(f"name: clicks\ndata: {source}{data}}}\nmodel: {{name: mlp}}\n")
    schedule = read(tmp_path, TEXT.replace("digits", "clicks")).model_copy(
        update={"recipe": str(tmp_path / "clicks.yaml"), "time_zone": "Asia/Tokyo", "overrides": []}
    )
    assert _with_days(recipes.load(schedule.recipe), schedule).data.time_zone == zone
    utc = schedule.model_copy(update={"time_zone": "UTC"})
    assert _with_days(recipes.load(schedule.recipe), utc).data.time_zone == (zone if data else "UTC")
    if not data:
        dated = recipes.load(schedule.recipe, ["data.features={x: {type: date}}"])
        with pytest.raises(
            ConfigurationError, match=r"Set data\.time_zone to Asia/Tokyo, or to \+00:00 for days of UTC"
        ):
            _with_days(dated, schedule)


def test_the_list_shows_the_newest_message_about_a_schedules_runs_and_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KFP's server is replaced, the folders of the runs are real."""
    kind = environments.load("kind").model_copy(update={"storage": str(tmp_path), "notify": Notify(body="json")})
    parameters = replace(compilation.metadata_for("digits", kind), schedule="nightly").parameters()
    runtime = kfp_server_api.V2beta1RuntimeConfig(parameters=parameters)
    made = [kfp_server_api.V2beta1Run(run_id=name, state="SUCCEEDED", runtime_config=runtime) for name in ("b", "a")]
    cron = kfp_server_api.V2beta1CronSchedule(cron="0 0 3 * * *")
    recurring = kfp_server_api.V2beta1RecurringRun(
        recurring_run_id="1",
        display_name="nightly.1",
        status="ENABLED",
        runtime_config=runtime,
        trigger=kfp_server_api.V2beta1Trigger(cron_schedule=cron),
    )
    server = SimpleNamespace(
        find_experiment=lambda: "x", recurring_runs=lambda _: [recurring], runs_made_by=lambda _: made
    )
    monkeypatch.setattr(schedules, "KubeflowServer", lambda environment: server)
    monkeypatch.setattr(clusters, "load", lambda name: kind)

    def listed() -> list[str]:
        return CliRunner().invoke(app, ["schedule", "list", "-e", "kind"], catch_exceptions=False).stdout.splitlines()

    assert listed() == ["nightly.1  enabled  0 0 3 * * *  last run never"]
    sent = {"event": "failed", "text": "t", "time": "2026-11-29T03:20:00+00:00", "delivered": True, "fault": ""}
    storage.write_text(
        f"{tmp_path}/digits/runs/a/notified.json", json.dumps({"messages": [sent | {"event": "drifted"}, sent]})
    )
    assert listed()[1:] == ["  message failed of 2026-11-29T03:20:00+00:00: delivered"]
    late = sent | {"event": "pushed", "delivered": False, "fault": "chat.example: answered 500 (Oops)."}
    storage.write_text(f"{tmp_path}/digits/runs/b/notified.json", json.dumps({"messages": [late]}))
    assert listed()[1].endswith(
        "message pushed of 2026-11-29T03:20:00+00:00: not delivered: chat.example: answered 500 (Oops)."
    )
    storage.write_text(f"{tmp_path}/digits/runs/b/notified.json", "{")
    assert len(listed()) == 1, "a damaged file hides no schedule"


def test_the_name_at_the_server_changes_with_what_runs_and_when(tmp_path: Path) -> None:
    kind = environments.load("kind")
    name = package(read(tmp_path, TEXT), kind)[1]
    assert package(read(tmp_path, TEXT), kind)[1] == name
    for change in ("set: [train.epochs=3]\n", "max_concurrency: 2\n", "when: {new_data: true}\n"):
        assert package(read(tmp_path, TEXT + change), kind)[1] != name


def test_the_recurring_run_is_one_of_kubeflows_published_types(tmp_path: Path) -> None:
    schedule = read(tmp_path, TEXT + "when: {new_data: true}\n")
    submission, name = package(schedule, environments.load("kind"))
    assert "exec-check" in submission.package
    body = request(schedule, Action("create", name, start=NOW), submission, "e1", "p1", "v1")
    api = kfp_server_api.ApiClient()
    sent = json.dumps(api.sanitize_for_serialization(body))
    assert api.deserialize(type("Response", (), {"data": sent}), "V2beta1RecurringRun") == body
    read_back = json.loads(sent)
    assert read_back["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * *", "start_time": "2026-03-01T03:00:30+00:00"}}
    assert (read_back["max_concurrency"], read_back["no_catchup"], read_back["mode"]) == ("1", True, "ENABLE")
    assert compilation.metadata_from_run(body).schedule == "nightly"
    body.runtime_config.parameters = {}
    assert compilation.metadata_from_run(body).schedule == ""


BLESSED, REFUSED = (Verdict(verdict=verdict, thresholds=[]) for verdict in ("blessed", "refused"))


def test_a_run_is_due_without_a_champion_with_new_data_or_with_an_old_champion(tmp_path: Path) -> None:
    root, models = str(tmp_path), tmp_path / "models"
    recipe = recipes.load("digits", [f"push.path={models}"])

    def due(when: When) -> tuple[bool, str]:
        return run(Pipeline(root, recipe), when, NOW)

    never, always = When(champion_older_than="7d"), When(new_data=True)
    assert due(never)[0] and "nothing was pushed" in due(never)[1]
    with storage.stage(str(models / "1"), producer="test") as version:
        (version / "saved_model.pb").write_text("")
    pushed = (NOW - timedelta(days=3)).isoformat()
    set_champion(str(models), Champion(version=1, path="1", digest="d", metrics={}, pushed=pushed))
    assert due(never) == (False, "version 1 stands: no condition of the schedule holds")
    assert due(When(champion_older_than="48h")) == (True, "version 1 was pushed 72 h ago, more than 48h")
    assert due(always)[0]
    examples = keys.output_uri(root, recipe, "preprocess", keys.fingerprint(recipe))
    model = Pipeline(root, recipe, outputs={"preprocess": examples}).place("train").output
    with storage.stage(model, producer="test"):
        pass
    left = (True, "the newest model is trained, and was neither refused nor pushed")
    assert due(always) == left and not due(never)[0]
    exported = keys.output_uri(root, recipe, "export", examples, model)
    with storage.stage(exported, producer="test") as folder:
        Exports(exports=[], gate=BLESSED).write(folder)
    assert due(always) == left
    digest = content(storage.require(exported)).digest
    pushed_again = keys.output_uri(root, recipe, "push", "any", exported)
    with storage.stage(pushed_again, producer="test") as folder:
        Pushed(path="2", version=2, digest=digest, already=False).write(folder)
    assert not due(always)[0], "what was pushed and taken back is not pushed again"
    storage.remove(pushed_again)
    with storage.stage(keys.output_uri(root, recipe, "evaluate", examples, model, "d"), producer="test") as folder:
        small_documents.evaluation(gate=REFUSED).write(folder)
    assert not due(always)[0]


def test_a_model_with_thresholds_that_was_pushed_beside_an_earlier_champion_is_not_due(tmp_path: Path) -> None:
    root, models = str(tmp_path), tmp_path / "models"
    recipe = recipes.load("digits", [f"push.path={models}", "threshold={maximize: f1, class: '3'}"])
    with storage.stage(str(models / "1"), producer="test") as version:
        (version / "saved_model.pb").write_text("")
    set_champion(str(models), Champion(version=1, path="1", digest="d", metrics={}))
    pipeline = Pipeline(root, recipe)
    for step in ("preprocess", "train", "evaluate"):
        pipeline.outputs[step] = pipeline.place(step).output
    with storage.stage(pipeline.outputs["train"], producer="test"):
        pass
    chosen = ClassThreshold(label="3", value=0.25, precision=1, recall=1, f1=1)
    with storage.stage(pipeline.outputs["evaluate"], producer="test") as folder:
        small_documents.evaluation(gate=BLESSED).model_copy(update={"thresholds": [chosen]}).write(folder)
    exported, arguments = pipeline.place("export")
    assert arguments["thresholds"] == '{"3": 0.25}'
    made_from = origin(recipe, "export", arguments).model_dump()
    with storage.stage(exported, producer="test", origin=made_from) as folder:
        Exports(exports=[], gate=BLESSED, thresholds={"3": 0.25}).write(folder)
    assert run(Pipeline(root, recipe), When(new_data=True), NOW)[0], "it was not pushed"
    digest = content(storage.require(exported)).digest
    with storage.stage(keys.output_uri(root, recipe, "push", "any", exported), producer="test") as folder:
        Pushed(path="2", version=2, digest=digest, already=False).write(folder)
    set_champion(str(models), Champion(version=1, path="1", digest="of another", metrics={}))
    assert not run(Pipeline(root, recipe), When(new_data=True), NOW)[0]
    pipeline.decisions = '{"3": 0.5}'
    assert pipeline.place("export").output != exported


def counted(mean: float) -> Statistics:
    feature = FeatureStatistics(count=100, missing=0, mean=mean, std=2.0, min=0, max=100)
    return Statistics(examples={"train": 100, "eval": 10, "test": 10}, classes={}, features={"age": {"train": feature}})


def test_drift_is_judged_when_new_data_are_counted_and_only_until_they_were_trained_on(tmp_path: Path) -> None:
    root, models = str(tmp_path), tmp_path / "models"
    recipe = recipes.load("digits", [f"push.path={models}"])
    examples = keys.output_uri(root, recipe, "preprocess", keys.fingerprint(recipe))

    def due() -> tuple[bool, str]:
        return run(Pipeline(root, recipe), When(drift=True), NOW)

    with storage.stage(str(models / "1"), producer="test") as version:
        (version / "saved_model.pb").write_text("")
        (version / EXTRA).mkdir()
        counted(mean=40).write(version / EXTRA)
    set_champion(str(models), Champion(version=1, path="1", digest="d", metrics={}))
    assert due() == (True, "the data are new, and were not compared with those of the champion yet")
    for mean, moved in ((40.4, False), (41.0, True)):
        with storage.stage(examples, producer="test") as folder:
            counted(mean).write(folder)
        assert due()[0] == moved, "the bound is a quarter of the standard deviation: 0.5"
        if not moved:
            storage.remove(examples)
    assert due()[1] == (
        "the data have drifted from those of version 1: age: mean 40 before, 41 now (standard deviation 2)"
    )
    model = Pipeline(root, recipe, outputs={"preprocess": examples}).place("train").output
    with storage.stage(model, producer="test"):
        pass
    with storage.stage(keys.output_uri(root, recipe, "evaluate", examples, model, "d"), producer="test") as folder:
        small_documents.evaluation(gate=REFUSED).write(folder)
    assert due() == (False, "version 1 stands: no condition of the schedule holds")


def test_a_champion_whose_statistics_are_missing_is_trained_again_and_one_whose_are_damaged_is_named(
    tmp_path: Path,
) -> None:
    version = tmp_path / "models" / "1"
    (version / EXTRA).mkdir(parents=True)
    (version / "saved_model.pb").write_text("")
    set_champion(str(version.parent), Champion(version=1, path="1", digest="d", metrics={}))
    recipe = recipes.load("digits", [f"push.path={version.parent}"])

    def due() -> tuple[bool, str]:
        return run(Pipeline(str(tmp_path), recipe), When(drift=True), NOW)

    assert due() == (True, "version 1 does not say what its data were like")
    (version / EXTRA / Statistics.file).write_text("{}")
    with pytest.raises(DataError, match="not the statistics of a data set"):
        due()
