"""The origin of an output, recorded in its manifest, so that a run can say why it makes another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from trainyard.contract import keys, weights
from trainyard.contract.provenance import Provenance, package_key, provenance
from trainyard.errors import TrainyardError, listed
from trainyard.graph import ARGUMENTS
from trainyard.spec import selection
from trainyard.spec.archive import Archive
from trainyard.spec.packages import wheels
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_SHOWN = 30  # reasons in a sentence; chosen
_FILES = 1000  # that are recorded by name; chosen
_VALUE = 40  # letters of a value in a reason; chosen

_INPUTS = {name: name for name in (*ARGUMENTS, "champion")} | {
    "exported": "exported files",
    "thresholds": "decision thresholds",
    "start": "model that training starts from",
}
"""The arguments that name what a step reads, and what people call it."""


class Origin(BaseModel):
    """The origin of one output.

    recipe: the parts of the recipe that count. inputs: the models, outputs of other steps and thresholds that were
    read, by argument. files: size and state of the data's files by name, of more than 1,000 one digest. weights: the
    digest of those that the training began with. selection: what a gate adds to the training. uploads: the archive of
    the recipe's code and its wheels, which `prune` keeps. time: when the step began, in UTC.
    """

    recipe: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, str] = {}
    weights: str = ""
    selection: str = ""
    provenance: Provenance
    uploads: list[str] = []
    time: str

    def changes(self, before: Origin) -> list[str]:
        """Return all that differs from `before`, a phrase each."""
        phrases = [*_differences(before.recipe, self.recipe), *self.provenance.changes(before.provenance)]
        phrases += _differences(before.files, self.files, shown=False)
        inputs = before.inputs.keys() | self.inputs.keys()
        changed = [name for name in sorted(inputs) if before.inputs.get(name) != self.inputs.get(name)]
        phrases += [f"the {_INPUTS[name]} changed" for name in changed]
        if self.selection != before.selection:
            phrases.append("the first gate's metric, which chooses the epoch, changed")
        return phrases + (["the weights that training starts from changed"] if self.weights != before.weights else [])


def origin(recipe: Recipe, step: str, arguments: dict[str, Any]) -> Origin:
    """Return the origin of the output that `step` would write now with `arguments`."""
    made_by = provenance(recipe, step)
    inputs = {name: str(value) for name, value in arguments.items() if name in _INPUTS and value}
    return Origin(
        recipe=json.loads(keys.sections(recipe, step)),
        inputs=inputs,
        files=_files(recipe, str(arguments.get("day", ""))) if step == "preprocess" else {},
        weights=weights.digest(recipe) if step == "train" else "",
        selection=selection.digest(recipe) if step == "train" else "",
        provenance=made_by,
        uploads=_uploads(recipe, made_by),
        time=datetime.now(UTC).isoformat(),
    )


def _uploads(recipe: Recipe, made_by: Provenance) -> list[str]:
    """Return the places of the archive of code, and of the wheels if the step calls the code."""
    code = [recipe.files.archive] if isinstance(recipe.files, Archive) else []
    return code + [each.location for name, each in wheels(recipe).items() if package_key(name) in made_by.modules]


def recorded(uri: str) -> Origin | None:
    """Return the recorded origin of the committed output at `uri`, None if there is none."""
    with suppress(TrainyardError, ValidationError):
        manifest = storage.committed(uri)
        return Origin.model_validate(manifest.origin) if manifest and manifest.origin else None
    return None


def why_again(output: str, now: Origin) -> str:
    """Return the differences between `now` and the most similar earlier output; '' if there is none."""
    folder, _ = keys.split(output)
    names = [name for name in storage.children(folder) if "." not in name]
    earlier = [before for name in names if (before := recorded(f"{folder}/{name}"))]
    if not earlier:
        return ""
    newest_first = sorted(earlier, key=lambda before: before.time, reverse=True)
    return listed(min((now.changes(before) for before in newest_first), key=len), _SHOWN)


def _files(recipe: Recipe, day: str) -> dict[str, str]:
    if recipe.data.format == "none" or recipe.data.bundled is not None:
        return {}
    files = keys.source_files(recipe, day)
    if len(files) > _FILES:
        return {f"data.path (over {_FILES:,} files)": keys.fingerprint_of(files)}
    return {name: f"{size} {state}" for name, size, state in files}


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], at: str = "", *, shown: bool = True
) -> Iterator[str]:
    """Yield a phrase for each entry that differs, in nested mappings too; shown: with its values."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if name not in before or name not in now:
            yield f"{at}{name} is {'new' if name in now else 'gone'}"
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{at}{name}.", shown=shown)
        elif old != new:
            values = f"{json.dumps(old)} → {json.dumps(new)}"
            yield f"{at}{name} {values if shown and len(values) <= 2 * _VALUE else 'changed'}"
