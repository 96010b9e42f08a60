"""Push: a blessed model becomes the next version in the folder that servers poll."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from trainyard import events
from trainyard.contract import refusal, version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.champion import Champion, set_champion
from trainyard.errors import GateRefused
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import versions
from trainyard.storage import storage
from trainyard.storage.storage import Manifest


def run(recipe: Recipe, evaluation: str, exported: str, output: Path, destination: str, dry_run: bool = False) -> None:
    """Make the export the newest version in `destination`, point champion.json at it, and say so in `output`.

    `evaluation` and `exported` are the committed outputs of evaluate and export. A version that is there already is not
    written again. Only the newest counts: a server loads the highest number, so an older model that is pushed again
    becomes a new version. With `dry_run` `destination` is not touched, and `output` says what would be done.

    Raises `GateRefused` if a gate refused the model, `TransientError` while another push writes to `destination`.
    """
    storage.require(evaluation, "evaluate")
    manifest = storage.require(exported, "export")
    judged = Evaluation.read(evaluation)
    _require_blessed(recipe, judged.gate, Exports.read(exported).gate)
    if dry_run:
        pushed = _plan(manifest, destination)
        events.emit("would_push", path=pushed.path, already=pushed.already)
    else:
        with storage.lease(destination):
            storage.remove_unfinished(destination)
            pushed = _plan(manifest, destination)
            if not pushed.already:
                versions.publish(exported, manifest, destination, pushed.version)
            set_champion(
                destination,
                Champion(
                    version=pushed.version,
                    path=pushed.path,
                    digest=pushed.digest,
                    metrics=judged.metrics,
                    pushed=datetime.now(UTC).isoformat(timespec="seconds"),
                ),
            )
        events.emit("pushed", path=pushed.path, already=pushed.already)
    pushed.write(output)


def _plan(exported: Manifest, destination: str) -> Pushed:
    digest = version.content(exported).digest
    newest = versions.newest(destination)
    already = versions.holds(destination, newest, digest)
    number = newest if already else newest + 1
    return Pushed(path=storage.join(destination, str(number)), version=number, digest=digest, already=already)


def _require_blessed(recipe: Recipe, *gates: Verdict) -> None:
    refused = [gate for gate in gates if gate.verdict != "blessed"]
    if refused:
        failed = refusal.why(threshold for gate in refused for threshold in gate.thresholds)
        raise GateRefused(
            f"{recipe.name}: {refusal.SENTENCE} ({failed}). "
            "Train a better one, or change evaluate.gates or export.max_accuracy_drop in the recipe."
        )
