"""What an output was made from: recorded in its manifest, so that a run can say why it makes another."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError

from trainyard.contract import keys
from trainyard.contract.provenance import Provenance, provenance
from trainyard.errors import TrainyardError, listed
from trainyard.graph import ARGUMENTS
from trainyard.spec.recipe import Recipe
from trainyard.storage import storage

_SHOWN = 4  # reasons in a sentence; chosen


class Origin(BaseModel):
    """What one output was made from.

    recipe: digest of the recipe's parts that count. inputs: the outputs of other steps that were read, by argument.
    time: when the step began, in UTC.
    """

    recipe: str
    inputs: dict[str, str]
    provenance: Provenance
    time: str

    def changes(self, before: Origin) -> list[str]:
        """Return what differs from `before`, a phrase each; nothing if the recipes differ."""
        if self.recipe != before.recipe:
            return []
        changed = [name for name, uri in self.inputs.items() if before.inputs.get(name) != uri]
        return self.provenance.changes(before.provenance) or [f"its {name} changed" for name in changed]


def origin(recipe: Recipe, step: str, arguments: dict[str, Any]) -> Origin:
    """Return what the output of `step` is made from that starts now with `arguments`."""
    return Origin(
        recipe=hashlib.sha256(keys.sections(recipe, step).encode()).hexdigest(),
        inputs={name: str(value) for name, value in arguments.items() if name in ARGUMENTS},
        provenance=provenance(recipe, step),
        time=datetime.now(UTC).isoformat(),
    )


def recorded(uri: str) -> Origin | None:
    """Return what the committed output at `uri` was made from, or None if it does not say, or is none."""
    with suppress(TrainyardError, ValidationError):
        manifest = storage.committed(uri)
        return Origin.model_validate(manifest.origin) if manifest and manifest.origin else None
    return None


def why_again(output: str, now: Origin) -> str:
    """Return why `output` is made although the same recipe has an output under another key; '' if it has none."""
    folder, _ = keys.split(output)
    names = [name for name in storage.children(folder) if "." not in name]
    earlier = [before for name in names if (before := recorded(f"{folder}/{name}")) and before.recipe == now.recipe]
    if not earlier:
        return ""
    return listed(now.changes(max(earlier, key=lambda origin: origin.time)), _SHOWN)
