"""The model card of a version: README.md with the header of the Hugging Face Hub, filled from the run.

Source: https://huggingface.co/docs/hub/model-cards and the example header in
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trainyard.contract.artifacts.evaluate import threshold_text
from trainyard.contract.artifacts.gate import Interval
from trainyard.contract.artifacts.preprocess import Column, Examples, RawFeature
from trainyard.contract.artifacts.push import VersionRecord
from trainyard.contract.artifacts.train import Training
from trainyard.contract.version import EXTRA
from trainyard.escape import one_line
from trainyard.measured import metric_text
from trainyard.report.outputs import Outputs
from trainyard.spec.gates import MAIN_METRIC
from trainyard.spec.hardware import catalog
from trainyard.spec.recipe import Recipe

_MOST_NAMES = 20  # in a cell; chosen
_MOST_ROWS = 50  # of slices and of columns; chosen: a page of each
_MARKUP = re.compile(r"([\\`*\[\]<|#~$]|(?<!\w)_|_(?!\w))")
_AUTOLINK = re.compile(r"(@|:(?=//)|\bwww(?=\.))", re.IGNORECASE)
"""The parts by which pages make links of bare text: an address, a URL, the name of an account.

Source: https://github.github.com/gfm/#autolinks-extension- and
https://docs.github.com/en/get-started/writing-on-github/getting-started-with-writing-and-formatting-on-github
"""
_HUB_TASKS = {
    ("classification", True): "image-classification",
    ("multi_label", True): "image-classification",
    ("classification", False): "tabular-classification",
    ("multi_label", False): "tabular-classification",
    ("regression", False): "tabular-regression",
}
_SCRIPTS = (f"{EXTRA}/signature.json", f"{EXTRA}/predict.py", f"{EXTRA}/preprocess.py")


def render(
    recipe: Recipe, record: VersionRecord, outputs: Outputs, files: Collection[str], training_cost: str = ""
) -> str:
    """Return the card of the version with `record` and `files`; what an unreadable output holds is left out."""
    examples = [name for name in sorted(files) if name.startswith(f"{EXTRA}/examples/ask_")]
    text: str = _template().render(
        header=_Markup(yaml.safe_dump(_header(recipe, record, files), sort_keys=False, allow_unicode=True)),
        recipe=recipe,
        record=record,
        examples=outputs.examples,
        split=outputs.evaluation.split if outputs.evaluation else None,
        model=_model(recipe, outputs) | ({"training cost": training_cost} if training_cost else {}),
        columns=_columns(recipe, outputs) if outputs.examples else [],
        main_metric=MAIN_METRIC[recipe.task],
        paths={file.path: _place(file.path) for file in record.exports},
        scripts=[*(name for name in _SCRIPTS if name in files), *examples],
        limit=_MOST_ROWS,
        machine=outputs.exports.machine if outputs.exports else "",
    )
    return re.sub(r"\n{3,}", "\n\n", text)


class _Markup(str):
    """Text that is Markdown already."""


def _header(recipe: Recipe, record: VersionRecord, files: Collection[str]) -> dict[str, Any]:
    is_image = recipe.data.is_image
    hub_task = _HUB_TASKS.get((recipe.task, is_image)) if recipe.data.format != "none" else None
    result = {
        "task": {"type": hub_task or "other"},
        "dataset": {"type": recipe.name, "name": recipe.name},
        "metrics": [{"type": name, "value": round(value, 6)} for name, value in record.metrics.items()],
    }
    header = {
        "license": recipe.push.license,
        "library_name": "keras" if f"{EXTRA}/model.keras" in files else None,
        "pipeline_tag": hub_task,
        "tags": ["trainyard", recipe.task.replace("_", "-"), *(file.format for file in record.exports)],
        "metrics": list(record.metrics),
        "model-index": [{"name": recipe.name, "results": [result]}] if record.metrics else None,
    }
    return {name: value for name, value in header.items() if value}


def _model(recipe: Recipe, outputs: Outputs) -> dict[str, str]:
    """Return properties of model and training by name."""
    training, examples = outputs.training, outputs.examples
    rows = {"task": recipe.task.replace("_", " ")}
    if examples:
        rows["classes"] = _some(examples.labels or [])
        if not (examples.image and examples.labels):
            rows["label"] = ", ".join(examples.targets) or examples.label
        if shape := examples.image:
            color = {1: "gray", 3: "RGB"}.get(shape.channels, f"{shape.channels} channels")
            rows["input"] = f"images, {shape.height} × {shape.width} pixels, {color}"
        else:
            rows["input"] = f"{len(examples.raw_features)} columns"
    if outputs.exports and outputs.exports.thresholds:
        thresholds = outputs.exports.thresholds.items()
        rows["thresholds"] = ", ".join(f"{name} above {threshold_text(value)}" for name, value in thresholds)
    if training:
        seconds = sum(training.seconds.values())
        rows |= {
            "network": training.model,
            "parameters": f"{training.parameters:,}" if training.parameters else "",
            "program": " ".join(training.command or []),
            "weights": training.start.weights,
            "start": training.start.warm_start,
            "teacher": training.start.teacher,
            "hardware": f"{_some(training.machine.devices)}; workers: {training.gang.workers}",
            "precision": training.precision,
            "training": f"{training.best_epoch} of {training.epochs} iterations"
            if training.is_trees
            else f"{training.epochs} epochs, {training.steps:,} steps",
            "training time": f"{seconds:,.0f} s" if seconds else "",
            "training energy": _energy(training, seconds),
        }
    return {name: text for name, text in rows.items() if text}


def _energy(training: Training, seconds: float) -> str:
    """Return the most energy that the accelerators can have taken in `seconds`, '' if their power is not known."""
    known = catalog.catalog().accelerators.get(catalog.named(training.machine.hardware) or "")
    if known is None or known.watts is None or not seconds:
        return ""
    kilowatt_hours = training.gang.replicas * known.watts * seconds / 3.6e6
    return (
        f"at most {kilowatt_hours:.2g} kWh: {training.gang.replicas} × {training.machine.hardware} at the "
        f"{known.watts:g} W that each may take (TDP), without the rest of the machine"
    )


@dataclass(frozen=True)
class _ColumnLimits:
    name: str
    missing: str
    unknown: str
    seen: str


def _columns(recipe: Recipe, outputs: Outputs) -> list[_ColumnLimits]:
    """Return the handling of missing and unknown values of each column."""
    examples: Examples | None = outputs.examples
    counts = outputs.evaluation.unknown if outputs.evaluation else {}
    types = {name: column.type for name, column in (recipe.data.features | recipe.data.inputs).items()}
    rows = []
    for feature in examples.columns if examples else []:
        if (learned := feature.learned) is None:
            continue
        type, seen = types.get(feature.name, ""), counts.get(feature.name)
        unknown = _unknown(learned, is_cell=isinstance(feature, RawFeature) and type == "numeric")
        shown = f"{seen.unknown:,} of {seen.values:,}" if seen else ""
        rows.append(_ColumnLimits(feature.name, _missing(learned, type), unknown, shown))
    return rows


def _missing(learned: Column, type: str) -> str:
    if type == "text":
        return "no words"
    if learned.vocabulary is not None:
        return f"the category '{learned.missing}'"
    if learned.imputed is None:
        return ""
    unit = " days since 1970" if type == "date" else " on the logarithmic scale" if learned.log else ""
    return f"{learned.imputed:.6g}{unit}"


def _unknown(learned: Column, is_cell: bool) -> str:
    """Return the treatment of an unknown value. is_cell: a number is read from a cell, which may hold none."""
    if learned.unknown is None:
        return "refused" if is_cell else ""
    return f"one of {learned.unknown.buckets} shared ids" if learned.unknown.buckets > 1 else "a shared id"


def _place(path: str) -> str:
    """Return the path in a version of an exported file."""
    return "saved_model.pb" if path == "saved_model" else f"{EXTRA}/{path}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _number(value: float | None) -> str:
    return "" if value is None else metric_text(value)


def _interval(interval: Interval | None) -> str:
    return f"{_number(interval.low)} to {_number(interval.high)}" if interval else ""


def _link(path: str) -> _Markup:
    return _Markup(f"[{_escaped(path)}]({path})")  # the names are Trainyard's own


def _escaped(value: object) -> object:
    """Return a text so that Markdown shows its characters; it stays on one line."""
    if isinstance(value, str) and not isinstance(value, _Markup):
        escaped = _MARKUP.sub(r"\\\1", one_line(" ".join(value.split()))).replace("&", "&amp;")
        return _AUTOLINK.sub(r"\1<!-- -->", escaped)  # not even an escaped character keeps a page from a link
    return value


@cache
def _template() -> Any:
    import jinja2  # only when a version is written

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701 - Markdown, which `finalize` escapes
        finalize=_escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "interval": _interval, "count": "{:,}".format, "link": _link}
    return environment.get_template("card.md.j2")
