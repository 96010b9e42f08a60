"""What a pushed version of a model is made of, so that others can tell whether an export was pushed before."""

from __future__ import annotations

from dataclasses import replace

from trainyard.contract.champion import EXTRA
from trainyard.storage.storage import Manifest

PRODUCER = "trainyard.push"
PREPROCESSING = "preprocessing.json"
"""What export writes beside the SavedModel of the inputs it takes; in a version it lies below `assets.extra/`."""

_SAVED_MODEL = "saved_model/"
_NOT_SERVED = "exports.json"


def layout(exported: Manifest) -> dict[str, str]:
    """Return where each exported file goes in a version's folder, as {path: name in the export's folder}.

    The SavedModel is the folder itself; all else lies below `assets.extra/`.
    """
    return {
        name.removeprefix(_SAVED_MODEL) if name.startswith(_SAVED_MODEL) else f"{EXTRA}/{name}": name
        for name in exported.files
        if name != _NOT_SERVED
    }


def content(exported: Manifest) -> Manifest:
    """Return the manifest that a version made of `exported` has: equal models have equal digests."""
    return replace(
        exported,
        producer=PRODUCER,
        files={path: exported.files[name] for path, name in layout(exported).items()},
    )
