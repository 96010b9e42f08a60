"""Keys of outputs: a step's folder is named by everything that its output depends on.

Equal recipe, inputs and provenance (what computes it) give the same folder, so a re-run finds what is done, resumes
what is not, and two runs of the same thing meet in one folder instead of writing two.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from functools import cache
from pathlib import Path

from trainyard.contract import window
from trainyard.contract.provenance import provenance
from trainyard.errors import DataError
from trainyard.graph import STEPS
from trainyard.spec.recipe import Recipe
from trainyard.storage import listing, storage

_CHECKPOINTS, _PARTS, _FAILURE, _MAKER, _AGAIN = COMPANIONS = (
    ".checkpoints",
    ".parts",
    ".failure.json",
    ".maker",
    ".again",
)
"""Suffixes of the files and folders beside an output."""
REPORT = "report.html"
"""The report's file in a run's folder."""
_READ_BY_STEPS = frozenset((".binpb", ".css", ".j2", ".js", ".json", ".py", ".yaml"))


def output_uri(root: str, recipe: Recipe, step: str, *inputs: str) -> str:
    """Return the folder of `step`'s output below the storage `root`.

    `inputs` are the folders that the step reads, which carry keys themselves, and what else names its output: see
    `pipeline.Pipeline.place`.
    """
    parts = [step, provenance(recipe, step).digest, sections(recipe, step), *inputs]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return storage.join(outputs_folder(root, recipe, step), key)


def outputs_folder(root: str, recipe: Recipe, step: str) -> str:
    """Return the folder of all outputs of `step` below the storage `root`."""
    return storage.join(root, recipe.name, step)


def split(output: str) -> tuple[str, str]:
    """Return the folder of all outputs of a step and the key of its `output`, as `output_uri` joins them."""
    folder, _, key = output.rstrip("/").rpartition("/")
    return folder, key


def sections(recipe: Recipe, step: str) -> str:
    """Return the parts of the recipe that the output of `step` depends on, as JSON."""
    parts = recipe.model_dump(mode="json", include=set(STEPS[step].sections))
    return json.dumps(parts, sort_keys=True)


def labeled(output: str, label: str) -> str:
    """Return the folder of an output that a label keeps apart from `output`; that itself without a label."""
    return f"{output}.{label}" if label else output


def checkpoints(model: str) -> str:
    """Return the checkpoint folder that train resumes from for its output `model`."""
    return f"{model}{_CHECKPOINTS}"


def published_weights(checkpoints: str) -> str:
    """Return the folder of published Keras weights beside the checkpoints of a training.

    No recipe's name begins so.
    """
    return storage.join(checkpoints.rsplit("/", 3)[0], "_published")


def parts(examples: str) -> str:
    """Return the folder that preprocess resumes from for its output `examples`."""
    return f"{examples}{_PARTS}"


def failure_record(output: str) -> str:
    """Return the file in which a failed step writes its exit code, class and sentence."""
    return f"{output}{_FAILURE}"


def again_record(output: str) -> str:
    """Return the file that names the request to recompute the output."""
    return f"{output}{_AGAIN}"


def maker_record(output: str) -> str:
    """Return the file that names the run that makes, or made, the output."""
    return f"{output}{_MAKER}"


def models_folder(root: str, recipe: Recipe) -> str:
    """Return the folder of model versions that a server polls."""
    return recipe.push.path or storage.join(root, recipe.name, "models")


def run_folder(root: str, recipe: str, run_id: str) -> str:
    """Return the folder of a run's record, notes, logs and report. recipe: its name."""
    return storage.join(root, recipe, "runs", run_id)


def cancellation(folder: str) -> str:
    """Return the file that records the end of a cancelled run in `folder`, which may have no record."""
    return storage.join(folder, "cancelled")


@cache
def code_digest(package: Path = Path(__file__).parent.parent) -> str:
    """Return the SHA-256 over this package.

    A step fails if the digests of its image and its pipeline differ. Keys depend on less: see `provenance`.
    """
    digest = hashlib.sha256()
    for name in package_files(package):
        digest.update(f"{name}\0".encode() + (package / name).read_bytes())
    return digest.hexdigest()


def package_files(package: Path) -> list[str]:
    """Return the names of the files of `package` that a step may read, the same in a checkout, a wheel and an image.

    Environments are for the control plane, and are behind a link in a checkout.
    """
    names = [path.relative_to(package).as_posix() for path in package.rglob("*") if path.suffix in _READ_BY_STEPS]
    return sorted(name for name in names if not name.startswith("environments/"))


def fingerprint(recipe: Recipe, day: str = "") -> str:
    """Return the fingerprint of the recipe's source, without reading records.

    day: if the recipe reads a window of days, what `window.paths` takes; its days are part of the name.

    Local files count with path, size and modification time, objects of a bucket with name, size and checksum; a bundled
    source with its name, for its content is fixed by the locked package; no data is 'none'. Raises `DataError` if
    nothing matches the path, days are missing or it may not be read, `TransientError` if a bucket cannot be reached.
    """
    if recipe.data.format == "none":
        return "none"
    if recipe.data.bundled is not None:
        return f"{recipe.data.bundled} scikit-learn {importlib.metadata.version('scikit-learn')}"
    return fingerprint_of(source_files(recipe, day))


def fingerprint_of(files: list[tuple[str, int, str]]) -> str:
    """Return the SHA-256 that changes with any of `files`."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def source_files(recipe: Recipe, day: str = "") -> list[tuple[str, int, str]]:
    """Return the name, the size and what else changes with the content of each file of the recipe's `data.path`.

    day: as of `fingerprint`, and so are the errors.
    """
    path = recipe.data.path or ""
    if recipe.data.window_days is None:
        entries = _list(path)
    else:
        listed = {date: _list(path) for date, path in window.paths(recipe.data, day).items()}
        window.require(recipe.data, ((date, len(files)) for date, files in listed.items()))
        entries = [(f"{date}/{name}", size, state) for date, files in listed.items() for name, size, state in files]
    if not entries:
        raise DataError(f"data.path: {path}: no files found. Correct data.path in the recipe.")
    return entries


def _list(path: str) -> list[tuple[str, int, str]]:
    return [(file.name, file.bytes, file.state) for file in listing.list_files(path).files]
