"""Messages about a run's end reach a real HTTP server, signed, and no fault of that server fails a run."""

from __future__ import annotations

import base64
import hmac
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.pushed_versions import push_versions
from tests.unit.test_environment import KUBEFLOW, LOCAL, load, refusal
from tests.unit.test_launch import TRAINING, watched
from tests.unit.test_outcome import pending
from tests.unit.test_pipeline_run import TEXT, PipelineRun

import trainyard as ty
from trainyard.errors import DataError
from trainyard.report import notify, pipeline_run
from trainyard.report.notify import Message, send, signature
from trainyard.runtime import task
from trainyard.spec.notify import KEY_VARIABLE, SETTINGS_VARIABLE, URL_VARIABLE, Notify

KEY = "whsec_" + base64.b64encode(b"twenty-four bytes or so!").decode()


class Webhook:
    """A server that keeps the requests and answers with `codes`, the last one again and again."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.codes, self.location, self.hangs = [204], "", threading.Event()
        self.hangs.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                outer.hangs.wait()
                self.send_response(outer.codes[min(len(outer.requests), len(outer.codes)) - 1])
                if outer.location:
                    self.send_header("Location", outer.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.requests]


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    server = Webhook()
    monkeypatch.setenv(URL_VARIABLE, server.url)
    yield server
    server.hangs.set()
    server.server.shutdown()
    server.server.server_close()


@pytest.fixture
def run(webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineRun:
    """A run in pods that have the settings of the environment."""
    monkeypatch.setenv(SETTINGS_VARIABLE, Notify().model_dump_json())
    return PipelineRun(tmp_path)


def all_steps(run: PipelineRun) -> None:
    for name in ("preprocess", "train", "evaluate", "export", "push"):
        run.step(name)


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    # source: standard-webhooks, spec/standard-webhooks.md, and its libraries' tests
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_pushed_model_is_told_once_with_metrics_and_a_signature(
    run: PipelineRun, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    all_steps(run)
    told = [(headers, body) for headers, body in webhook.requests if json.loads(body)["type"] == "pushed"]
    [(headers, body)] = told
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"twenty-four bytes or so!", content, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    data = json.loads(body)["data"]
    assert data["metrics"]["accuracy"] and data["pushed"]["version"] == run.record()["pushed"]["version"]
    assert data["text"].startswith("digits, run r1: pushed version")

    count = len(webhook.requests)
    run.step("push")  # a retry of a step whose end Kubeflow did not see
    assert len(webhook.requests) == count
    sent = json.loads((run.folder / notify.SENT).read_text())["messages"]
    assert [(each["event"], each["delivered"]) for each in sent][-1] == ("pushed", True)

    (run.folder / notify.SENT).write_text('{"messages": [null]}')
    with pytest.raises(DataError, match="is no list of messages, so it is damaged"):
        notify.last_message(str(run.folder))
    run.step("push")
    assert run.record()["exit_code"] == 0 and len(webhook.requests) == count + 1


def test_a_failure_and_a_refusal_are_told_and_only_the_wanted_events(
    run: PipelineRun, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run.step("preprocess", DataError("houses.csv: row 3 has 4 of 5 fields"))
    assert [body["type"] for body in webhook.bodies] == ["failed"]
    assert "houses.csv: row 3 has 4 of 5 fields" in webhook.bodies[0]["data"]["text"]
    assert webhook.bodies[0]["data"]["exit_code"] == 10

    run.judge("refused")
    for name in ("preprocess", "train", "evaluate"):
        run.step(name)
    assert webhook.bodies[-1]["type"] == "refused" and "the gate refused" in webhook.bodies[-1]["data"]["text"]

    count = len(webhook.requests)
    monkeypatch.setenv(SETTINGS_VARIABLE, Notify(events=["failed"]).model_dump_json())
    run.step("evaluate")
    assert len(webhook.requests) == count


def test_a_step_that_kubeflow_cancels_or_ends_at_the_deadline_tells_it(
    run: PipelineRun, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, told = signal.getsignal(signal.SIGTERM), []

    def write_failure(*arguments: Any) -> None:  # Argo ends the container before it is through
        deadline = time.monotonic() + 10
        while not webhook.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        told.append(len(webhook.requests))
        write(*arguments)

    write = pipeline_run.write_failure
    monkeypatch.setattr(pipeline_run, "write_failure", write_failure)
    with pytest.raises(SystemExit) as end, task.opened("preprocess", TEXT, str(run.root), "", "r1") as this:
        this.place()
        assert signal.getsignal(signal.SIGTERM) not in (before, signal.SIG_DFL), "the signal would end the tests"
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert end.value.code == 143 and run.record()["failed_step"] == "preprocess"
    [body] = webhook.bodies
    assert told == [1] and (body["type"], body["data"]["exit_code"]) == ("failed", 143)
    assert body["data"]["text"].startswith("digits, run r1: failed. preprocess was stopped by SIGTERM: the run was ")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_channel_gets_a_sentence_in_which_nothing_is_a_command(webhook: Webhook) -> None:
    for body in ("slack", "teams"):
        send(Notify.model_validate({"body": body}), Message("failed", "<!channel> a & b", {}))
    slack, teams = webhook.bodies
    assert slack == {"text": "&lt;!channel&gt; a &amp; b"}
    card = teams["attachments"][0]["content"]
    assert card["type"] == "AdaptiveCard"
    assert card["body"] == [{"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": "<!channel> a & b"}]}]
    assert not any(name.startswith("webhook-") for headers, _ in webhook.requests for name in headers)


def test_a_busy_server_is_asked_again_with_the_same_id(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    webhook.codes = [500, 429, 200]
    send(Notify(), Message("pushed", "text", {}))
    assert len({headers["webhook-id"] for headers, _ in webhook.requests}) == 1 and len(webhook.requests) == 3


@pytest.mark.parametrize(
    ("codes", "location", "reason"),
    [
        ([403], "", "127.0.0.1: answered 403"),
        ([307], "http://other.example/hook", "redirects to other.example, which is not followed"),
        ([302], "", "redirects to"),
    ],
)
def test_a_fault_of_the_server_is_a_warning_and_no_failure(
    webhook: Webhook, capfd: pytest.CaptureFixture[str], codes: list[int], location: str, reason: str
) -> None:
    webhook.codes, webhook.location = codes, location
    send(Notify(), Message("pushed", "text", {}))
    assert reason in capfd.readouterr().err and len(webhook.requests) == 1


def test_a_server_that_hangs_delays_a_run_for_seconds_and_its_end_is_recorded(
    run: PipelineRun, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notify, "_SECONDS", 0.2)
    webhook.hangs.clear()
    all_steps(run)
    assert "did not answer within" in capfd.readouterr().err
    assert run.record()["exit_code"] == 0
    sent = json.loads((run.folder / notify.SENT).read_text())["messages"]
    assert not any(each["delivered"] for each in sent)


@pytest.mark.parametrize(
    ("variable", "value"), [(KEY_VARIABLE, "whsec_%%%"), (URL_VARIABLE, "file:///etc/passwd"), (URL_VARIABLE, "")]
)
def test_a_useless_secret_is_named_and_not_shown(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    send(Notify(), Message("pushed", "text", {}))
    told = capfd.readouterr().err
    assert variable in told and not (value and value in told) and not webhook.requests


def test_a_gang_that_waits_for_nodes_is_told_once(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTINGS_VARIABLE, Notify().model_dump_json())
    with pytest.raises(Exception, match="0/6 nodes"):
        watched(monkeypatch, TRAINING, [pending(0, "0/6 nodes are available")])
    assert [body["type"] for body in webhook.bodies] == ["waits"]
    assert "0/6 nodes" in webhook.bodies[0]["data"]["text"]


def test_a_rollback_is_told_and_neither_a_dry_run_nor_a_repetition(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    push_versions()
    Path("own.yaml").write_text(f"{LOCAL}notify: {{}}\n")
    versions = ty.versions("digits", environment="own.yaml")
    for dry_run in (True, False):
        versions.rollback("1", dry_run=dry_run)
    versions.rollback("3")
    [body] = webhook.bodies
    assert body["type"] == "rolled_back" and body["data"]["restored"] == 1 and body["data"]["version"] == 3
    assert body["data"]["text"].endswith("version 3 serves instead of 2, a copy of version 1.")


def test_pods_get_the_settings_and_no_secret(tmp_path: Path) -> None:
    secret = f"secrets: {{{URL_VARIABLE}: {{secret: chat, key: url}}}}\n"
    environment = load(tmp_path, f"{KUBEFLOW}{secret}notify: {{body: slack, events: [failed]}}\n")
    settings = json.loads(environment.pod_variables[SETTINGS_VARIABLE])
    assert settings == {"url": "", "body": "slack", "events": ["failed"]}
    assert SETTINGS_VARIABLE not in load(tmp_path, KUBEFLOW).pod_variables


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{KUBEFLOW}notify: {{}}\n", "secrets: {TRAINYARD_NOTIFY_URL:"),
        (f"{KUBEFLOW}notify: {{url: 'https://hooks.slack.com/x', body: slack}}\n", "is a secret of Slack"),
        (f"{LOCAL}notify: {{url: 'https://me:pw@host/x'}}\n", "without a user"),
        (f"{LOCAL}notify: {{url: 'ftp://host/x'}}\n", "notify.url"),
        (f"{LOCAL}notify: {{events: []}}\n", "notify.events"),
        (f"{LOCAL}notify: {{events: [died]}}\n", "died"),
        (KUBEFLOW.replace("target: kubeflow", "target: vertex") + "notify: {}\n", "Vertex AI Pipelines has no Secrets"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refusal(tmp_path, text)
