"""The one client of the Kubernetes API: what it repeats, what it takes for an answer, and what it says of a refusal."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiException

from trainyard.errors import InfrastructureError, TransientError
from trainyard.kubernetes.client import JOBS, Cluster


class Api:
    """An API server that gives `answers` one after the other, the last one for ever."""

    configuration = SimpleNamespace(host="https://api.example")

    def __init__(self, *answers: int | OSError) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, str, Any]] = []

    def call_api(self, path: str, method: str, *, body: Any, **_: Any) -> SimpleNamespace:
        self.calls.append((method, path, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        if answer != 200:
            error = ApiException(status=answer, reason="Refused")
            error.body = json.dumps({"message": f"said {answer}"})
            raise error
        return SimpleNamespace(data=b'{"metadata": {"name": "gang"}}')


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def cluster(api: Api, **options: Any) -> Cluster:
    return Cluster(api, "runs", **{"patience_seconds": 60, "remedy": "Bind the Role.", **options})


def test_a_busy_or_silent_server_is_asked_again_and_each_other_problem_is_passed_on() -> None:
    api, problems = Api(503, 503, ConnectionResetError("reset"), 200), list[str]()
    answer = cluster(api, on_retry=problems.append).get("/api/v1/nodes")
    assert answer == {"metadata": {"name": "gang"}}
    assert problems == ["said 503", "reset"] and len(api.calls) == 4


def test_a_webhook_that_does_not_answer_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the API server says it while Kueue's controller does not run."""
    text = 'Internal error occurred: failed calling webhook "mjob.kb.io": failed to call webhook: connection refused'
    monkeypatch.setattr("trainyard.kubernetes.client.message", lambda _: text)
    with pytest.raises(TransientError, match=r'"mjob\.kb\.io".*\. Start what serves that webhook, and run the same'):
        cluster(Api(500), patience_seconds=0).create("jobs", {"apiVersion": "batch/v1"})


def test_no_patience_and_a_post_ask_once() -> None:
    for call, options in (("get", {"patience_seconds": 0}), ("post", {})):
        api = Api(ConnectionRefusedError("refused"))
        quick = cluster(api, **options)
        with pytest.raises(TransientError, match=r"https://api.example cannot be reached \(refused\)"):
            quick.get("/api") if call == "get" else quick.post("/api", {})
        assert len(api.calls) == 1 and quick.unreachable


def test_an_object_that_exists_is_not_created_and_one_that_is_gone_is_none() -> None:
    api = Api(409, 404)
    client = cluster(api)
    assert client.create("jobs", {"apiVersion": "batch/v1"}) is None
    assert client.get(client.path("jobs", "gang", JOBS)) is None
    assert [path for _, path, _ in api.calls] == [
        "/apis/batch/v1/namespaces/runs/jobs",
        "/apis/batch/v1/namespaces/runs/jobs/gang",
    ]
    assert not client.unreachable


def test_a_deletion_by_uid_spares_an_object_made_later() -> None:
    api = Api(409)
    cluster(api).delete("/job", uid="1")
    assert api.calls[0][2] == {"propagationPolicy": "Foreground", "preconditions": {"uid": "1"}}
    with pytest.raises(InfrastructureError, match=r"DELETE /job: 409 \(said 409\)"):
        cluster(Api(409)).delete("/job")


def test_a_refusal_names_the_remedy_of_who_asks_and_can_be_read_without_it() -> None:
    with pytest.raises(InfrastructureError, match=r"GET /api: refused \(said 403\). Bind the Role."):
        cluster(Api(403)).get("/api")
    assert cluster(Api(403)).refusal("/api", {}) == "said 403"
    assert cluster(Api(200)).refusal("/api", {}) == ""
