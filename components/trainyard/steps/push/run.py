"""Push: a blessed model becomes the next version in the folder that servers poll."""

from __future__ import annotations

import getpass
import os
from datetime import UTC, datetime
from pathlib import Path

from trainyard import events
from trainyard.contract import refusal, version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Override, Verdict
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.champion import Champion, set_champion
from trainyard.errors import GateRefused
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import versions
from trainyard.storage import storage
from trainyard.storage.storage import Manifest


def run(
    recipe: Recipe,
    evaluation: str,
    exported: str,
    output: Path,
    destination: str,
    dry_run: bool = False,
    override: str = "",
) -> None:
    """Make the export the newest version in `destination`, point champion.json at it, and say so in `output`.

    `evaluation` and `exported` are the committed outputs of evaluate and export. A version that is there already is not
    written again. Only the newest counts: a server loads the highest number, so an older model that is pushed again
    becomes a new version. With `dry_run` `destination` is not touched, and `output` says what would be done.

    override: why a model is pushed that a gate refused; champion.json and `output` then say so, with the user's name.

    Raises `GateRefused` if a gate refused the model, `TransientError` while another push writes to `destination`.
    """
    storage.require(evaluation, "evaluate")
    manifest = storage.require(exported, "export")
    judged = Evaluation.read(evaluation)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    refused = _refusal(judged.gate, Exports.read(exported).gate)
    if refused and not override:
        raise GateRefused(
            f"{recipe.name}: {refusal.SENTENCE} ({refused}). "
            "Train a better one, or change evaluate.gates or export.max_accuracy_drop in the recipe."
        )
    overridden = Override(name=_person(), time=now, reason=override) if refused else None
    if dry_run:
        pushed = _plan(manifest, destination, overridden)
        events.emit("would_push", path=pushed.path, already=pushed.already)
    else:
        with storage.lease(destination):
            storage.remove_unfinished(destination)
            pushed = _plan(manifest, destination, overridden)
            if not pushed.already:
                versions.publish(exported, manifest, destination, pushed.version)
            set_champion(
                destination,
                Champion(
                    version=pushed.version,
                    path=pushed.path,
                    digest=pushed.digest,
                    metrics=judged.metrics,
                    pushed=now,
                    override=overridden,
                ),
            )
        events.emit("pushed", path=pushed.path, already=pushed.already)
    pushed.write(output)


def _plan(exported: Manifest, destination: str, override: Override | None) -> Pushed:
    digest = version.content(exported).digest
    newest = versions.newest(destination)
    already = versions.holds(destination, newest, digest)
    number = newest if already else newest + 1
    path = storage.join(destination, str(number))
    return Pushed(path=path, version=number, digest=digest, already=already, override=override)


def _refusal(*gates: Verdict) -> str:
    """Return the conditions that refuse the model, '' if all hold."""
    refused = [gate for gate in gates if gate.verdict != "blessed"]
    return refusal.why(threshold for gate in refused for threshold in gate.thresholds)


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()}"
