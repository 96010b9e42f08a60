"""Prediction: `trainyard predict` beside a bare batch loop over the same SavedModel, in one process.

python -m benchmarks.commands.predict prints the table. The models are those of bundled recipes, trained for an epoch.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.cost import cost

ROWS = 100_000
FEW_ROWS = 10_000
IMAGES = 10_000
_REPEATS = 5
_ROW_BATCH, _IMAGE_BATCH = 4096, 128


def section() -> str:
    """Return the part of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for recipe in ("tabular", "digits"):
            train(recipe, folder)
        write_table(folder / "few.csv", FEW_ROWS)
        write_table(folder / "rows.csv", ROWS)
        write_images(folder / "images")
        few, many = (peak_mib(folder, file) for file in ("few.csv", "rows.csv"))
        speeds = [
            speed("tabular", folder, folder / "rows.csv", ROWS, bare_table),
            speed("digits", folder, folder / "images", IMAGES, bare_images),
        ]
    lines = "\n".join(
        f"| {workload} | {bare:,.0f} | {ours:,.0f} | {ours / bare:.2f} |"
        for workload, (bare, ours) in zip(
            (f"CSV of {ROWS:,} rows of 30 numbers", f"{IMAGES:,} PNG files of 8 x 8 pixels"), speeds, strict=True
        )
    )
    return f"""Examples per second, median of {_REPEATS} turns in one process, model loaded. The bare loop reads with
Arrow or file by file, calls the SavedModel and writes Parquet. The aim is 0.9 of the bare loop.

| input | bare loop | `trainyard predict` | ratio |
| --- | ---: | ---: | ---: |
{lines}

Peak memory of the command: {few:,.0f} MiB for {FEW_ROWS:,} rows, {many:,.0f} MiB for {ROWS:,}."""


def train(recipe: str, folder: Path) -> None:
    """Push a model of the bundled `recipe` below `folder`/runs, whatever it is worth."""
    options = ["--set", "train.epochs=1", "--set", "evaluate.gates=[]", "--set", "export.formats=[saved_model]"]
    command = [sys.executable, "-m", "trainyard_control.cli.main", "run", recipe, *options]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)


def write_table(path: Path, rows: int) -> None:
    """Write `rows` rows of scikit-learn's breast cancer data, repeated."""
    from sklearn.datasets import load_breast_cancer

    from trainyard.steps.preprocess.readers.bundled import write_breast_cancer

    with tempfile.TemporaryDirectory() as folder:
        write_breast_cancer(Path(folder))
        (file,) = Path(folder).rglob("*.csv")
        head, *body = file.read_text().splitlines()
    assert len(body) == len(load_breast_cancer().data)
    with path.open("w") as stream:
        stream.write(f"{head}\n")
        stream.writelines(f"{body[row % len(body)]}\n" for row in range(rows))


def write_images(folder: Path) -> None:
    """Write scikit-learn's digits over and over, 1,000 a folder."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    pixels = np.rint(load_digits().data * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    for number in range(IMAGES):
        path = folder / str(number // 1000) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number % len(pixels)]).save(path)


def peak_mib(folder: Path, file: str) -> float:
    """Return the most memory that the command takes for a table."""
    model, out = folder / "runs" / "tabular" / "models", folder / "memory.parquet"
    command = [sys.executable, "-m", "trainyard_control.cli.main", "predict", str(model), str(folder / file)]
    return cost([*command, "--out", str(out), "--force"]).peak_mib


def speed(
    recipe: str, folder: Path, source: Path, examples: int, bare: Callable[[Path, Path, Path], None]
) -> tuple[float, float]:
    """Return the examples a second of the bare loop and of ours, in turns."""
    from trainyard.steps.predict.prediction import predict
    from trainyard.steps.predict.pushed_model import find_model

    model = find_model(str(folder / "runs" / recipe / "models"))
    seconds: dict[str, list[float]] = {"bare": [], "ours": []}
    for turn in range(_REPEATS + 1):
        start = time.monotonic()
        bare(Path(model.folder), source, folder / "bare.parquet")
        seconds_used = time.monotonic() - start - _loading[-1]
        summary = predict(model, str(source), folder / "ours.parquet", None, lambda _done, _total, _unit: None)
        assert summary.predicted == examples
        if turn:  # the first one warms up
            seconds["bare"].append(seconds_used)
            seconds["ours"].append(summary.predict_seconds)
    return examples / statistics.median(seconds["bare"]), examples / statistics.median(seconds["ours"])


_loading = [0.0]


def bare_table(model: Path, source: Path, out: Path) -> None:
    """Ask for the rows of a CSV file."""
    import pyarrow as pa
    import tensorflow as tf
    from pyarrow import csv as pa_csv

    loaded = _loaded(model)
    with source.open(newline="") as stream:
        names = [name for name in next(csv.reader(stream)) if name != "diagnosis"]
    options = pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float32()), include_columns=names)
    blocks = pa_csv.open_csv(source, pa_csv.ReadOptions(block_size=4 << 20), convert_options=options)
    batches = (block.slice(start, _ROW_BATCH) for block in blocks for start in range(0, block.num_rows, _ROW_BATCH))
    _ask(loaded, ({name: tf.constant(batch[name].to_numpy()) for name in names} for batch in batches), out)


def bare_images(model: Path, source: Path, out: Path) -> None:
    """Ask for the files of a folder."""
    import tensorflow as tf

    loaded, files = _loaded(model), sorted(source.rglob("*.png"))
    batches = (files[start : start + _IMAGE_BATCH] for start in range(0, len(files), _IMAGE_BATCH))
    _ask(loaded, ({"image": tf.constant([file.read_bytes() for file in batch])} for batch in batches), out)


def _loaded(model: Path):  # type: ignore[no-untyped-def]
    start = time.monotonic()
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    _loading.append(time.monotonic() - start)
    return loaded


def _ask(loaded: Any, batches: Iterable[dict[str, Any]], out: Path) -> None:
    """Write the answers to the inputs of each batch as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    for inputs in batches:
        answers = loaded.signatures["serving_default"](**inputs)
        probabilities = answers["probabilities"].numpy()
        columns = {str(place): probabilities[:, place] for place in range(probabilities.shape[1])}
        table = pa.table({"label": answers["label"].numpy().astype(str), **columns})
        writer = writer or parquet.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


if __name__ == "__main__":
    print(section())
