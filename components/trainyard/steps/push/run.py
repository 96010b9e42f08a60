"""Push: a blessed model becomes the next version in the folder that servers poll."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from trainyard import events
from trainyard.contract import origin, version
from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import Exports
from trainyard.contract.artifacts.gate import REFUSED, Override, Verdict, refusal_reason
from trainyard.contract.artifacts.push import GateRecord, Pushed, VersionRecord
from trainyard.contract.pushed_versions import CANDIDATE, aliases, candidates, rejections, set_rejection
from trainyard.contract.version import Champion, champion, set_champion
from trainyard.errors import ConfigurationError, GateRefused
from trainyard.graph import ARGUMENTS, remedy
from trainyard.report.outputs import Outputs, read
from trainyard.spec import archive
from trainyard.spec.archive import Archive
from trainyard.spec.recipe import Recipe
from trainyard.steps.push import card, versions
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
    run_folder: str = "",
    usd_per_hour: str = "",
) -> None:
    """Make the export the newest version in `destination`, point champion.json at it, and say so in `output`.

    `evaluation` and `exported` are the committed outputs of evaluate and export. A version that already exists is not
    written again. Only the newest counts: a server loads the highest number, so an older model that is pushed again
    becomes a new version. If the recipe says `push.approve`, a model that does not serve yet becomes the version that
    waits for approval instead, and replaces the one that waited. With `dry_run` `destination` is not touched, and
    `output` says what would be done.

    override: why a model is pushed that a gate refused; champion.json and `output` then say so, with the user's name.
    run_folder: the run's folder, for the version's record. usd_per_hour: price of all training workers, '' if unknown.

    Waits while another process writes to `destination`. Raises `GateRefused` if a gate refused the model.
    """
    storage.require(evaluation, remedy("evaluate"))
    manifest = storage.require(exported, remedy("export"))
    judged, exports = Evaluation.read(evaluation), Exports.read(exported)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    refused = _refusal(judged.gate, exports.gate)
    if refused and not override:
        raise GateRefused(
            f"{recipe.name}: {REFUSED} ({refused}). "
            "Train a better one, or change evaluate.gates or export.max_accuracy_drop in the recipe."
        )
    overridden = Override(name=versions.person(), time=now, reason=override) if refused else None
    outputs = _outputs(evaluation, judged, exports)
    record = _record(recipe, run_folder, outputs, judged, exports)
    record = record.model_copy(update={"pushed": now, "by": versions.person(), "override": overridden})
    if dry_run:
        pushed = _plan(recipe, manifest, destination, overridden)
        events.emit("would_push", path=pushed.path, already=pushed.already)
    else:
        with storage.lease(destination, wait=True):
            storage.remove_unfinished(destination)
            pushed = _plan(recipe, manifest, destination, overridden)
            folder = candidates(destination) if pushed.waits else destination
            if not pushed.already:
                files = version.layout(manifest)
                cost = _cost(outputs, run_folder, usd_per_hour)
                text = card.render(recipe, record, outputs, files, cost)
                extra = {version.CARD: text.encode()}
                if isinstance(recipe.files, Archive):
                    extra[version.CODE] = archive.read(recipe.files)
                versions.publish(exported, files, manifest, folder, pushed.version, record, extra)
            best = champion(destination) if recipe.push.approve else None
            set_champion(
                folder,
                Champion(
                    version=pushed.version,
                    path=pushed.path,
                    digest=pushed.digest,
                    metrics=judged.metrics,
                    pushed=now,
                    override=overridden,
                    approval=best.approval if best and not pushed.waits else None,
                    compared=_digest(judged.champion) if pushed.waits else "",
                ),
            )
            if pushed.waits:
                if pushed.version in rejections(destination):
                    set_rejection(destination, pushed.version, None)
                versions.remove_candidates(destination, pushed.version)
        events.emit("pushed", path=pushed.path, already=pushed.already)
    pushed.write(output)


def _plan(recipe: Recipe, exported: Manifest, destination: str, override: Override | None) -> Pushed:
    digest = version.digest(version.content(exported))
    waits = False
    if recipe.push.approve:
        best = champion(destination)
        waits = best is None or best.digest != digest
        if CANDIDATE in aliases(destination):
            raise ConfigurationError(
                f"{destination}: {CANDIDATE} is an alias, and with push.approve the version that waits for approval. "
                f"Remove the alias: trainyard models alias {CANDIDATE} {recipe.name} --remove."
            )
    number, already = versions.number_for(destination, digest, waits)
    path = storage.join(candidates(destination) if waits else destination, str(number))
    return Pushed(path=path, version=number, digest=digest, already=already, override=override, waits=waits)


def _digest(folder: str | None) -> str:
    """Return the digest of the model in the version `folder`, '' without one."""
    manifest = storage.committed(folder) if folder else None
    return version.digest(manifest) if manifest else ""


def _refusal(*gates: Verdict) -> str:
    """Return the conditions that refuse the model, '' if all hold."""
    refused = [gate for gate in gates if gate.verdict != "blessed"]
    return refusal_reason(threshold for gate in refused for threshold in gate.thresholds)


def _outputs(evaluation: str, judged: Evaluation, exports: Exports) -> Outputs:
    """Return the outputs that the version was made of; what cannot be read any more is None."""
    made_from = origin.recorded(evaluation)
    folders = {ARGUMENTS[name]: uri for name, uri in made_from.inputs.items() if name in ARGUMENTS} if made_from else {}
    return replace(read(folders, skip_unreadable=True), evaluation=judged, exports=exports)


def _record(recipe: Recipe, run_folder: str, outputs: Outputs, judged: Evaluation, exports: Exports) -> VersionRecord:
    """Return the record of the version without who pushed it."""
    examples, training = outputs.examples, outputs.training
    return VersionRecord(
        recipe=recipe.model_dump(mode="json"),
        run=run_folder,
        examples={split: files.examples for split, files in examples.splits.items()} if examples else {},
        fingerprint=examples.fingerprint if examples else "",
        metrics=judged.metrics,
        intervals=judged.intervals,
        slices=judged.slices,
        gates=[
            GateRecord(name=name, split=split, **gate.model_dump(mode="json")) for name, split, gate in outputs.gates
        ],
        exports=exports.exports,
        thresholds=exports.thresholds,
        devices=training.machine.devices if training else [],
        training_seconds=sum(training.seconds.values()) if training else None,
    )


def _cost(outputs: Outputs, run_folder: str, usd_per_hour: str) -> str:
    """Return the cost of the training: its time at a price, or the attempts that the run noted; '' if unknown."""
    training = outputs.training
    if usd_per_hour and training and (seconds := sum(training.seconds.values())):
        price = float(usd_per_hour)
        return f"about ${seconds / 3600 * price:.2g}: {seconds:,.0f} s at ${price:g} an hour"
    note = storage.read_json(f"{run_folder}/train.json") if run_folder else None
    costs = [attempt["cost_usd"] for attempt in (note or {}).get("attempts", [])]
    return f"about ${sum(costs):.2g}: its workers at the prices of their pools" if costs and None not in costs else ""
