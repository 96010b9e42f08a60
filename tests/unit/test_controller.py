"""Whether Argo's workflow controller runs, by the Lease that it renews."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.test_explanation import Silent
from tests.unit.test_run_cost import node_pod, runs
from tests.unit.test_run_view import run

from trainyard.errors import ExitCode, InfrastructureError
from trainyard.spec import environment as environments
from trainyard_control.cluster import argo
from trainyard_control.kubeflow import doctor
from trainyard_control.kubeflow.run_view import RunView

RENEWED = "2026-01-01T00:00:00.000000Z"


class Leased(Silent):
    """A cluster whose Lease was renewed at these times, read after read."""

    def __init__(self, *times: str) -> None:
        self.times = list(times)

    def get(self, path: str, *_: Any, **__: Any) -> dict[str, Any] | None:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases/workflow-controller"
        return {"spec": {"renewTime": self.times.pop(0)}} if self.times else None


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_a_controller_is_silent_if_it_does_not_renew_its_lease_whatever_the_clocks_say() -> None:
    assert argo.silent_since(Leased(ago(5)), "kubeflow") == ""
    assert argo.silent_since(Leased(ago(3600), ago(3590)), "kubeflow") == ""  # this machine's clock is wrong
    assert argo.silent_since(Leased(RENEWED, RENEWED), "kubeflow") == RENEWED
    assert argo.silent_since(Leased(), "kubeflow") is None


def test_doctor_refuses_a_kubeflow_whose_controller_is_silent() -> None:
    check = doctor._controller(Leased(RENEWED, RENEWED), "kubeflow")
    assert (check.verdict, check.code) == ("bad", ExitCode.INFRASTRUCTURE)
    assert check.sentence.endswith("kubectl -n kubeflow rollout restart deployment workflow-controller")
    assert doctor._controller(Leased(ago(1)), "kubeflow").verdict == "good"
    assert doctor._controller(Leased(), "kubeflow").verdict == "unknown"

    def refuse(*_: Any, **__: Any) -> None:
        raise InfrastructureError("forbidden")

    forbidden = Leased()
    forbidden.get = refuse  # type: ignore[method-assign]
    assert doctor._controller(forbidden, "kubeflow").verdict == "unknown"


def test_a_run_that_waits_for_a_silent_controller_says_so() -> None:
    view = run("RUNNING")
    assert view.idle and not run("SUCCEEDED").idle
    stuck = argo.silence_sentence(RENEWED, "kubeflow")
    held = RunView("id", "nightly", "RUNNING", "digits", "kind", "", 1.0, stuck=stuck)
    assert held.reason.startswith(f"nightly: Kubeflow's workflow controller has not answered since {RENEWED}: no")


def test_a_run_that_nobody_can_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = environments.load("kind")
    served = kind.kubeflow.model_copy(update={"endpoint": "http://kfp.example"})
    looked_at = runs(
        kind.model_copy(update={"kubeflow": served}), node_pod("t", "train", "training", 0, None), state="RUNNING"
    )
    asked: list[str] = []
    looked_at.server.terminate = asked.append  # type: ignore[method-assign]
    looked_at.cluster.get = Leased(RENEWED, RENEWED).get  # type: ignore[method-assign]
    clock = itertools.count(step=15)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with pytest.raises(InfrastructureError, match="its end was asked for, and cannot come"):
        looked_at.cancel("r")
    assert asked == ["r"] and next(clock) < 180
