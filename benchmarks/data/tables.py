"""One table from CSV to examples, three times: the step, Beam and tf.Transform as their guide writes it, and by hand.

python -m benchmarks.data.tables SIDE FILE OUTPUT. SIDE is ours, beam, hand, or of the reader batches, rows, imports
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

NUMBERS = ("age", "income", "balance", "visits")
CATEGORIES = ("color", "city", "plan")
DAY, LABEL = "since", "bought"
FEATURES = {
    **{name: {"type": "numeric"} for name in NUMBERS},
    **{name: {"type": "category"} for name in CATEGORIES},
    DAY: {"type": "date"},
}
_BATCH = 4096
_SHARES = {"train": 0.8, "eval": 0.1, "test": 0.1}


def write(path: Path, rows: int) -> None:
    """Write a table of four numbers, three categories, a day and a label: nothing missing, nothing bad."""
    draw = np.random.default_rng(1)
    days = np.datetime64("2000-01-01") + draw.integers(0, 9000, rows)
    columns = {
        "age": draw.integers(18, 90, rows),
        "income": draw.lognormal(10, 1, rows),
        "balance": np.round(draw.normal(0, 5000, rows), 2),
        "visits": draw.integers(0, 1000, rows),
        "color": draw.choice(["red", "green", "blue", "white"], rows),
        "city": np.char.add("city ", draw.integers(0, 3000, rows).astype(str)),
        "plan": draw.choice(["basic", "plus"], rows),
        DAY: days.astype(str),
        LABEL: draw.choice(["no", "yes"], rows),
    }
    csv.write_csv(pa.table(columns), path, csv.WriteOptions(quoting_style="none"))


def ours(path: Path, output: Path) -> None:
    """Run the step, with its defaults."""
    recipe = output.with_suffix(".yaml")
    recipe.write_text(json.dumps(document(path)))  # JSON is YAML
    command = [sys.executable, "-m", "trainyard.steps", "preprocess", "--recipe", str(recipe), "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True)


def beam(path: Path, output: Path) -> None:
    """Run Beam and tf.Transform, with the step's own transform. No digests, splits, order or statistics.

    Source: tensorflow.org/tfx/tutorials/transform/census.
    """
    import apache_beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from apache_beam.coders import BytesCoder
    from tensorflow_transform.tf_metadata import schema_utils
    from tfx_bsl.public import tfxio

    from trainyard.steps.preprocess.transforming.features import column_preprocessing, raw_spec

    data = _recipe(path).data
    schema = schema_utils.schema_from_feature_spec({**raw_spec(data), LABEL: tf.io.FixedLenFeature((), tf.string)})
    numbers = {name: feature for name, feature in data.features.items() if name not in CATEGORIES}
    own = column_preprocessing(data.model_copy(update={"features": numbers}), {}, [], Path())

    def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
        ids = {name: tft.compute_and_apply_vocabulary(inputs[name], num_oov_buckets=1) for name in CATEGORIES}
        return {**own(inputs), **ids, LABEL: inputs[LABEL]}

    source: Any = tfxio.BeamRecordCsvTFXIO(physical_format="text", column_names=[*FEATURES, LABEL], schema=schema)
    with apache_beam.Pipeline() as pipeline, tft_beam.Context(temp_dir=str(output) + ".tmp"):
        lines: Any = apache_beam.io.ReadFromText(str(path), coder=BytesCoder(), skip_header_lines=1)
        raw = (pipeline | lines | source.BeamSource(), source.TensorAdapterConfig())
        (transformed, _), transform_fn = raw | tft_beam.AnalyzeAndTransformDataset(
            preprocessing_fn, output_record_batches=True
        )
        encoder = tfxio.RecordBatchToExamplesEncoder()
        _ = (
            transformed
            | "Encode" >> apache_beam.FlatMapTuple(lambda batch, _: encoder.encode(batch))
            | "Write" >> apache_beam.io.WriteToTFRecord(f"{output}/examples")
        )
        _ = transform_fn | tft_beam.WriteTransformFn(f"{output}/transform")


def hand(path: Path, output: Path) -> None:
    """Do the step's work in one loop over Arrow's batches: digests, splits, order, statistics, transform, shards."""
    types = {**dict.fromkeys(NUMBERS, pa.float64()), **dict.fromkeys((*CATEGORIES, DAY, LABEL), pa.string())}
    stream = csv.open_csv(
        path,
        csv.ReadOptions(use_threads=False, block_size=1 << 20),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    tables, first = [], 2
    for batch in stream:
        tables.append(_placed(batch, path.name, first))
        first += batch.num_rows
    table = pa.concat_tables(tables).combine_chunks()
    train = table.filter(pa.compute.equal(table["split"], "train"))
    _write_shards(_transformed(table, train), output)


def _placed(batch: Any, name: str, first: int) -> Any:
    """Return the rows with their key, split and order, by the same digests as the step's."""
    contents = [b""] * batch.num_rows
    for column in sorted(FEATURES):
        for row, value in enumerate(batch[column].to_pylist()):
            encoded = repr(value).encode()
            contents[row] += f"{column}\0{len(encoded)}\0".encode() + encoded
    keys, splits, orders = [], [], []
    for row, content in enumerate(contents, first):
        digest = hashlib.sha256(content).digest()
        draw = int.from_bytes(hashlib.sha256(b"split\0001\0" + digest).digest()[:8], "big") / 2**64
        keys.append(f"{name}:{row}")
        splits.append("train" if draw < 0.8 else "eval" if draw < 0.9 else "test")
        orders.append(hashlib.sha256(f"order\0001\0{keys[-1]}\0".encode() + digest).digest()[:16])
    table = pa.Table.from_batches([batch])
    for column, values in (("key", keys), ("split", splits), ("order", orders)):
        table = table.append_column(column, [pa.array(values)])
    return table


def _transformed(table: Any, train: Any) -> Any:
    """Return the examples in their order: z-scores, ids by frequency, the raw columns, label and key."""
    import pyarrow.compute as pc

    columns: dict[str, Any] = {}
    for name in (*NUMBERS, DAY):
        days = name == DAY
        numbers, known = (
            (pc.cast(pc.cast(each[name], pa.date32()), pa.int32()) if days else each[name]).to_numpy()
            for each in (table, train)
        )
        statistics = known.mean(), known.std(), known.min(), known.max()
        columns[name] = ((numbers - statistics[0]) / (statistics[1] or 1)).astype(np.float32)
    for name in CATEGORIES:
        counts = pc.value_counts(train[name]).to_pylist()
        vocabulary = [each["values"] for each in sorted(counts, key=lambda each: (-each["counts"], each["values"]))]
        columns[name] = pc.fill_null(pc.index_in(table[name], pa.array(vocabulary)), len(vocabulary))
    dates = pc.cast(table[DAY], pa.date32())
    columns |= {"month": pc.month(dates), "weekday": pc.day_of_week(dates)}
    columns |= {f"raw/{name}": table[name] for name in FEATURES}
    columns |= {"label": pc.index_in(table[LABEL], pa.array(["no", "yes"]))}
    columns |= {name: table[name] for name in ("key", "split", "order")}
    return pa.table(columns).sort_by([("split", "ascending"), ("order", "ascending")])


def _write_shards(table: Any, output: Path) -> None:
    import tensorflow as tf
    from tfx_bsl.public.tfxio import RecordBatchToExamplesEncoder

    encoder: Any = RecordBatchToExamplesEncoder()
    output.mkdir(parents=True)
    for split in _SHARES:
        rows = table.filter(pa.compute.equal(table["split"], split)).drop_columns(["split", "order"])
        for index, batch in enumerate(rows.combine_chunks().to_batches(_BATCH)):
            with tf.io.TFRecordWriter(str(output / f"{split}-{index:05}.tfrecord")) as writer:
                for example in encoder.encode(_lists(batch)):
                    writer.write(example)


def _lists(batch: Any) -> Any:
    """Return the batch as the encoder takes it: a list of one a row."""
    kinds = {pa.float64(): pa.float32(), pa.string(): pa.large_binary(), pa.int32(): pa.int64()}
    offsets = pa.array(np.arange(batch.num_rows + 1), pa.int64())
    arrays = [
        pa.LargeListArray.from_arrays(offsets, column.cast(kinds.get(column.type, column.type)))
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def batches(path: Path, _: Path) -> None:
    """Read the table as the step does."""
    from trainyard.readers.table_file import TableFile
    from trainyard.steps.preprocess.readers.tables import judged_rows

    for _batch in judged_rows(TableFile(str(path), path.name), _recipe(path)):
        pass


def rows(path: Path, output: Path) -> None:
    """Read the table as the step reads what is odd: row by row."""
    from trainyard.readers import csv_rows
    from trainyard.readers.csv_blocks import RowBlock

    nothing = RowBlock(b"", np.array([], np.int64), 0, True)
    csv_rows.plain_block = lambda *_, **__: nothing
    batches(path, output)


def imports(path: Path, _: Path) -> None:
    """Import what `batches` and `rows` do."""
    from trainyard.steps.preprocess.readers import tables  # noqa: F401

    _recipe(path)


def _recipe(path: Path) -> Any:
    from trainyard.spec.recipe import Recipe

    return Recipe.model_validate(document(path))


def document(path: Path) -> dict[str, Any]:
    """Return the recipe of the table at `path`."""
    data = {"format": "csv", "path": str(path), "label": LABEL, "features": FEATURES}
    return {"name": "table", "data": data, "model": {"name": "mlp"}}


SIDES = {each.__name__: each for each in (ours, beam, hand, batches, rows, imports)}

if __name__ == "__main__":
    SIDES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
