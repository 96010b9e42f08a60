"""The launcher's sign of life lies beside the checkpoints, and is gone once its gang has trained."""

from __future__ import annotations

from pathlib import Path

from trainyard.steps.train.gang import launcher_sign
from trainyard_control.kubeflow.run_pods import launcher_sign as sign_of


def test_nothing_of_a_launchers_sign_is_left_once_its_gang_has_trained(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    sign = launcher_sign.sign(str(tmp_path))
    with launcher_sign.given(sign):
        launcher_sign.note_queue(sign, 3.0)
    assert len([*(tmp_path / "gang").iterdir()]) == 2
    launcher_sign.forget(sign)
    assert [each.name for each in tmp_path.iterdir()] == ["step-1"]
    launcher_sign.forget(sign)


def test_a_gangs_job_names_its_launchers_sign() -> None:
    variables = [{"name": "A", "value": "b"}, {"name": "TRAINYARD_LAUNCHER_SIGN", "value": "gs://b/c/gang/launcher"}]
    job = {"spec": {"template": {"spec": {"containers": [{"name": "worker", "env": variables}]}}}}
    assert sign_of(job) == "gs://b/c/gang/launcher"
    job["spec"]["template"]["spec"]["containers"][0]["env"].pop()
    assert sign_of(job) == ""
