"""What real servers answered of runs is read as what happened: recorded/ has it, trimmed, with their versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainyard_control.cluster import argo


def recorded(name: str) -> Any:
    return json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())


def test_a_retry_that_argo_killed_at_its_authors_bound_is_the_one_attempt_that_has_it_as_its_reason() -> None:
    workflow = recorded("bounded")["workflow"]
    nodes = workflow["status"]["nodes"]
    reasons = argo.stop_reasons([workflow])
    pods = {nodes[name]["displayName"]: reason for name, reason in reasons.items() if nodes[name]["type"] == "Pod"}
    assert pods == {"executor(1)": argo.OUT_OF_TIME[0]}
    assert not argo.retried([workflow]) and not argo.cancelled(workflow) and argo.overdue([workflow]) is None


def test_a_run_that_was_cancelled_between_two_attempts_is_neither_overdue_nor_tried_again() -> None:
    answer = recorded("cancelled")
    workflow = answer["workflow"]
    assert argo.cancelled(workflow) and argo.overdue([workflow]) is None and not argo.retried([workflow])
    assert answer["run"]["state"] == "FAILED"  # Kubeflow's word for it; its history says more
    assert [moment.get("state") for moment in answer["run"]["state_history"]][-2:] == ["CANCELING", "FAILED"]
