"""Messages about a run's end: who receives them and for which events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from trainyard.spec.documents import Strict
from trainyard.spec.plain_yaml import Location

SETTINGS_VARIABLE = "TRAINYARD_NOTIFY"
"""Variable of pods with the section as JSON."""
URL_VARIABLE, KEY_VARIABLE = "TRAINYARD_NOTIFY_URL", "TRAINYARD_NOTIFY_KEY"
"""Variables with the address, if it is secret, and with the signing key."""

Event = Literal["failed", "refused", "pushed", "drifted", "waits", "rolled_back", "below_gate"]


class Notify(Strict):
    """Messages to a webhook about a run's end. They never fail a run."""

    url: Annotated[str, Field(max_length=1024, pattern=r"^(https?://[^\s]+)?$")] = Field(
        "",
        description=f"Address of the webhook. Empty: the variable {URL_VARIABLE}, from `secrets` on a cluster; the "
        "addresses of Slack and Teams are secret.",
    )
    body: Literal["json", "slack", "teams"] = Field(
        "json",
        description="json: all fields, signed as in Standard Webhooks if the variable "
        f"{KEY_VARIABLE} holds a key. slack, teams: a sentence for a channel.",
    )
    events: Annotated[list[Event], Field(min_length=1, max_length=7)] = Field(
        ["failed", "refused", "pushed", "drifted", "waits", "rolled_back", "below_gate"],
        description="drifted: the data have drifted from the champion's. waits: a gang has waited ten minutes for "
        "nodes. rolled_back: an earlier version serves again. below_gate: `evaluate --answers` found that the served "
        "model does not meet its gates.",
    )


def faults(notify: Notify, target: str, variables: set[str]) -> Iterator[tuple[Location, str]]:
    """Yield the location and the reason of each fault. variables: names that pods get from Secrets."""
    if notify.url:
        if URL_VARIABLE in variables:
            yield ("url",), f"is given, and secrets.{URL_VARIABLE} too. Leave one of them out"
        parsed = urlsplit(notify.url)
        if not parsed.hostname or parsed.username or parsed.password:
            yield ("url",), "takes https://host/path without a user. Put a secret address into a Secret"
        elif notify.body != "json":
            yield ("url",), f"is a secret of {notify.body.title()}, and packages show it. Name it as {URL_VARIABLE}"
    elif target == "vertex":
        yield ("url",), "is required: Vertex AI Pipelines has no Secrets"
    elif target == "kubeflow" and URL_VARIABLE not in variables:
        yield ("url",), f"is required. Give it, or secrets: {{{URL_VARIABLE}: {{secret: …, key: …}}}}"
