"""Tells a webhook how a run ended. A message that cannot be sent is a warning in the log.

Messages with the body `json` are signed as Standard Webhooks 1.0.0 says
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md), so that receivers can
check them with a public library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from trainyard import escape, events
from trainyard.contract.artifacts.gate import recorded_refusal
from trainyard.errors import DataError, ExitCode, TrainyardError, listed
from trainyard.report.outputs import Outputs
from trainyard.retry import retry
from trainyard.spec.notify import KEY_VARIABLE, SETTINGS_VARIABLE, URL_VARIABLE, Event, Notify
from trainyard.storage import storage

SENT = "notified.json"
"""File in a run's folder: its `messages`, each with event, text, time, and why it was not delivered."""

_SECONDS = 40.0  # chosen: a run that is over waits no longer for a webhook that hangs
_ATTEMPT_SECONDS = 10.0  # chosen: Slack answers in one
_BUSY = (429, 500, 502, 503, 504)
_PREFIX = "whsec_"
_LISTED = 3  # ways in which data have drifted, in a sentence
_FIELDS = {"event", "text", "time", "delivered", "fault"}  # of each message in `SENT`
_stopped: dict[str, threading.Lock] = {}  # by folder of a run that `send_stopped` tells of, held while it does


@dataclass(frozen=True)
class Message:
    """One sentence about an event. fields: the same for programs. folder: of the run; '' for an event outside a run."""

    event: Event
    text: str
    fields: dict[str, Any]
    folder: str = ""

    @property
    def id(self) -> str:
        """The same for every attempt to send the message, so that receivers can drop a repetition."""
        content = json.dumps([self.event, self.folder, self.text])
        return f"msg_{hashlib.sha256(content.encode()).hexdigest()[:32]}"


def send_stopped(folder: str, recipe: str, run_id: str, step: str) -> None:
    """Send, with the settings of this pod, that SIGTERM ended the `step` of a run; `send_end` then does not.

    To be called when the signal arrives: Argo ends the container up to a second later, before there is a record. So
    nothing is read before.
    """
    settings = from_variables()
    if settings is None or "failed" not in settings.events:
        return
    with _stopped.setdefault(folder, threading.Lock()):
        why = "by SIGTERM: the run was cancelled or reached its deadline, or the node was taken"
        fields = {"recipe": recipe, "run_id": run_id, "failed_step": step, "exit_code": int(ExitCode.PREEMPTED)}
        text = f"{recipe}, run {run_id}: failed. {step} was stopped {why}."
        _deliver(settings, Message("failed", text, fields, folder))


def send_end(settings: Notify | None, folder: str, record: Mapping[str, Any], outputs: Outputs) -> None:
    """Send the messages about an ended run, as `send`. record: its run.json. folder: that of the run."""
    names = ("recipe", "run_id", "metrics", "gate", "pushed", "report", "failed_step", "exit_code")
    fields = {name: record.get(name) for name in names}
    report = f" Report: {record['report']}" if record.get("report") else ""

    def tell(event: Event, sentence: str) -> None:
        text = f"{record['recipe']}, run {record['run_id']}: {sentence.rstrip('.')}.{report}"
        send(settings, Message(event, text, fields, folder))

    movements = outputs.evaluation.drift if outputs.evaluation else []
    if moved := [each for movement in movements for each in movement.sentences]:
        tell("drifted", f"the data have drifted from the champion's: {listed(moved, _LISTED, '; ')}")
    if record["exit_code"] == ExitCode.INTERRUPTED:
        return  # by the person in front of it
    if record["exit_code"] == ExitCode.PREEMPTED and folder in _stopped:
        with _stopped.pop(folder):  # until its answer is noted
            return
    if record["failure"]:
        tell("failed", f"failed. {record['failure']}")
    elif pushed := outputs.pushed:
        again = f"pushed nothing new: the same model is version {pushed.version} already"
        waits = ", which waits for approval" if pushed.waits else ""
        tell("pushed", f"{again if pushed.already else f'pushed version {pushed.version}'}{waits}")
    elif outputs.gates and outputs.verdict == "refused":
        tell("refused", f"the gate refused the model: {recorded_refusal(record)}")


def from_variables() -> Notify | None:
    """Return the settings of this pod, None without any."""
    text = os.environ.get(SETTINGS_VARIABLE)
    return Notify.model_validate_json(text) if text else None


def send(settings: Notify | None, message: Message) -> None:
    """Send `message` within 40 s if its event is wanted, a run's message once, and note the answer in its folder.

    Raises nothing: a fault is a warning in the log.
    """
    if settings is None or message.event not in settings.events:
        return
    if not any(each["text"] == message.text and each["delivered"] for each in _sent(message.folder)):
        _deliver(settings, message)


def _sent(folder: str) -> list[dict[str, Any]]:
    """Return the messages that are noted in the `folder` of a run, none if they cannot be read."""
    with suppress(TrainyardError):
        return _messages(folder) if folder else []
    return []


def _messages(folder: str) -> list[dict[str, Any]]:
    file = storage.join(folder, SENT)
    messages = storage.read_json(file).get("messages", [])
    if not (isinstance(messages, list) and all(isinstance(each, dict) and each.keys() >= _FIELDS for each in messages)):
        raise DataError(f"{file}: is no list of messages, so it is damaged. Delete it.")
    return messages


def _deliver(settings: Notify, message: Message) -> None:
    fault = _post(settings, message)
    if fault:
        events.warn(f"no message about {message.event}: {fault}")
    note = {
        "event": message.event,
        "text": message.text,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "delivered": not fault,
        "fault": fault,
    }
    with suppress(TrainyardError):
        if message.folder:
            messages = {"messages": [*_sent(message.folder), note]}
            storage.write_text(storage.join(message.folder, SENT), json.dumps(messages, indent=1))


def last_message(folder: str) -> dict[str, Any] | None:
    """Return the newest message about the run in `folder` as `SENT` has it, None without one. Raises as `read_json`."""
    return next(reversed(_messages(folder)), None)


def _post(settings: Notify, message: Message) -> str:
    """Send `message` and return why it was not delivered, '' if it was."""
    url = settings.url or os.environ.get(URL_VARIABLE, "")
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        return f"{URL_VARIABLE}: holds no https:// address. Give that of the webhook."
    try:
        request = urllib.request.Request(url, *_signed(settings, message))  # noqa: S310 - checked above
    except ValueError:  # as of base64
        return f"{KEY_VARIABLE}: holds no key. Give whsec_ and 24 to 64 random bytes in base64."
    fault = [f"{address.hostname}: did not answer within {_SECONDS:.0f} s."]
    opener = urllib.request.build_opener(NoRedirect)

    def call() -> None:
        with opener.open(request, timeout=_ATTEMPT_SECONDS):
            pass

    def post() -> None:
        try:
            retry(call, is_busy, seconds=_SECONDS - _ATTEMPT_SECONDS, first_pause=1, longest_pause=8)
            fault[0] = ""
        except HTTPError as error:
            target = urlsplit(error.headers.get("Location", "")).hostname
            redirect = f"redirects to {target}, which is not followed" if error.code // 100 == 3 else ""
            fault[0] = f"{address.hostname}: {redirect or f'answered {error.code}'} ({escape.one_line(error.reason)})."
        except (OSError, HTTPException) as error:
            fault[0] = f"{address.hostname}: {escape.one_line(error)}."

    # In a thread, because a server that sends one byte a second passes the limit of each call.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return fault[0]


def _signed(settings: Notify, message: Message) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of `message`. Raises `ValueError` if the signing key is none."""
    now = datetime.now(UTC)
    body = json.dumps(_body(settings, message, now)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "trainyard"}
    key = os.environ.get(KEY_VARIABLE, "")
    if settings.body != "json" or not key:
        return body, headers
    secret = base64.b64decode(key.removeprefix(_PREFIX), validate=True)
    if not secret:
        raise ValueError("an empty key")
    stamp = str(int(now.timestamp()))
    return body, headers | {
        "webhook-id": message.id,
        "webhook-timestamp": stamp,
        "webhook-signature": signature(secret, message.id, stamp, body),
    }


def signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the header `webhook-signature`: version 1, HMAC-SHA256 over id, timestamp in seconds, and body."""
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


def _body(settings: Notify, message: Message, now: datetime) -> dict[str, Any]:
    if settings.body == "slack":
        # source: https://docs.slack.dev/messaging/formatting-message-text, "Escaping text"
        return {"text": message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    if settings.body == "teams":
        # TextBlock reads Markdown, RichTextBlock nothing.
        text = {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": message.text}]}
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [text]}
        content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return {"type": "message", "attachments": [content]}
    data = {"text": message.text} | message.fields
    return {"type": message.event, "timestamp": now.isoformat(timespec="seconds"), "data": data}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error: another host must not get a signed message."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Follow none."""


def is_busy(error: Exception) -> bool:
    """Return True if a server that answered a call with `error` may take it later."""
    return error.code in _BUSY if isinstance(error, HTTPError) else isinstance(error, OSError | HTTPException)
