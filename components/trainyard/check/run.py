"""Whether a scheduled run has anything to train: decided in seconds, from names in the storage alone."""

from __future__ import annotations

from datetime import datetime

from trainyard.core import keys, storage
from trainyard.core.champion import champion
from trainyard.core.recipe import Recipe
from trainyard.core.schedule import When


def run(recipe: Recipe, root: str, destination: str, when: When, now: datetime) -> tuple[bool, str]:
    """Return whether to train, and why, in a sentence. `destination` is the folder of the pushed versions.

    Reads no record of the data and writes nothing. Raises as `keys.fingerprint`.
    """
    best = champion(destination)
    if best is None:
        return True, f"nothing was pushed to {destination} yet"
    if when.new_data:
        examples = keys.output_uri(root, recipe, "preprocess", keys.fingerprint(recipe))
        model = keys.output_uri(root, recipe, "train", examples)
        if storage.committed(model) is None:
            return True, "nothing was trained yet from the data as they are now, by this recipe and code"
    if when.hours is not None:
        if not best.pushed:
            return True, f"version {best.version} does not say when it was pushed"
        age = (now - datetime.fromisoformat(best.pushed)).total_seconds() / 3600
        if age > when.hours:
            return True, f"version {best.version} was pushed {age:.0f} h ago, more than {when.champion_older_than}"
    return False, f"version {best.version} stands: no condition of the schedule holds"
