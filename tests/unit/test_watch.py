"""Watching a run whose server does not answer."""

from __future__ import annotations

import pytest
from tests.login_proxy import Answers, serve

from trainyard.errors import TransientError
from trainyard.spec import environment as environments
from trainyard_control.kubeflow import runs as kubeflow_runs
from trainyard_control.kubeflow.runs import KubeflowRuns


def test_a_server_whose_gateway_is_down_is_asked_no_faster_than_one_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gateway(Answers):
        asked = 0

        def do_GET(self) -> None:
            Gateway.asked += 1
            self.answer(520, b"")

    monkeypatch.setattr(kubeflow_runs, "_SILENT_SECONDS", 0.5)
    monkeypatch.setattr(kubeflow_runs, "_POLL_SECONDS", 0.1)
    with serve(Gateway) as server:
        kubeflow = environments.Kubeflow(endpoint=f"http://127.0.0.1:{server.server_port}")
        runs = KubeflowRuns(environments.load("kind").model_copy(update={"kubeflow": kubeflow}))
        with pytest.raises(TransientError, match="520"):
            list(runs.watch("r"))
    assert 2 <= Gateway.asked <= 7
