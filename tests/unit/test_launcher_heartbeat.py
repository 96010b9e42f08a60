"""The launcher's heartbeat lies beside the checkpoints, and is gone once its gang has trained."""

from __future__ import annotations

from pathlib import Path

from trainyard.steps.train.peers import launcher_heartbeat
from trainyard_control.kubeflow.runs import launcher_heartbeat as heartbeat_of


def test_nothing_of_a_launchers_heartbeat_is_left_once_its_gang_has_trained(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    uri = launcher_heartbeat.heartbeat_uri(str(tmp_path))
    with launcher_heartbeat.beating(uri):
        launcher_heartbeat.write_queue_seconds(uri, 3.0)
    assert len([*(tmp_path / "gang").iterdir()]) == 2
    launcher_heartbeat.remove(uri)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    launcher_heartbeat.remove(uri)


def test_a_gangs_job_names_its_launchers_heartbeat() -> None:
    variables = [{"name": "A", "value": "b"}, {"name": "TRAINYARD_LAUNCHER_SIGN", "value": "gs://b/c/gang/launcher"}]
    job = {"spec": {"template": {"spec": {"containers": [{"name": "worker", "env": variables}]}}}}
    assert heartbeat_of(job) == "gs://b/c/gang/launcher"
    job["spec"]["template"]["spec"]["containers"][0]["env"].pop()
    assert heartbeat_of(job) == ""
