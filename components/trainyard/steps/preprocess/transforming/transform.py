"""The second pipeline: tf.Transform analyses the training split, then every example is transformed and written."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import schema_utils
from tfx_bsl.public.tfxio import RecordBatchToExamplesEncoder, TFExampleBeamRecord

from trainyard.contract.artifacts import Split
from trainyard.steps.preprocess import progress
from trainyard.steps.preprocess.facts.summary import bucket
from trainyard.steps.preprocess.runner import pipeline
from trainyard.steps.preprocess.shards import Layout, write_shard
from trainyard.steps.preprocess.transforming.reproducible import make_reproducible

_RECORD = "_record"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the second pipeline does.

    records: the pattern of the first one's output. raw_spec: parsing specification of the raw features. materialize:
    whether the shards hold the transformed features, or (default images) only the raw ones. label_ids: class id by
    name, None for regression. examples: those of all splits. batch_size: examples that tf.Transform takes at once; left
    to Beam it would follow the machine's speed, and the last digit of a mean with it.
    """

    records: str
    raw_spec: dict[str, Any]
    preprocessing_fn: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
    materialize: bool
    label_ids: dict[str, int] | None
    layouts: dict[Split, Layout]
    examples: int
    batch_size: int
    beam_options: str


def transform(plan: Plan, output: Path, work: str) -> None:
    """Write the transform graph and the example shards below `output`; `work` takes what is temporary."""
    (output / "examples").mkdir()
    schema = schema_utils.schema_from_feature_spec(plan.raw_spec)
    tfxio = TFExampleBeamRecord(
        physical_format="tfrecord", telemetry_descriptors=["trainyard"], schema=schema, raw_record_column_name=_RECORD
    )
    config = tfxio.TensorAdapterConfig()
    passthrough = {_RECORD}
    with (
        warnings.catch_warnings(),
        progress.told(2, plan.examples, "examples"),
        pipeline(plan.beam_options) as root,
        tft_beam.Context(temp_dir=work, passthrough_keys=passthrough, force_tf_compat_v1=False),
    ):
        # tf.Transform divides 0 by 0 when it merges two empty batches, and takes 0 for it.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="tensorflow_transform")
        records = root | "Read" >> beam.io.ReadFromTFRecord(plan.records)
        train = records | "Train" >> beam.Filter(_is_train) | "Train batches" >> tfxio.BeamSource(plan.batch_size)
        transform_fn = (train, config) | tft_beam.AnalyzeDataset(plan.preprocessing_fn)
        _ = transform_fn | tft_beam.WriteTransformFn(str(output / "transform"))
        if plan.materialize:
            batches = records | "Batches" >> tfxio.BeamSource(plan.batch_size)
            transformed, _ = ((batches, config), transform_fn) | tft_beam.TransformDataset(output_record_batches=True)
            examples = transformed | "Encode" >> beam.FlatMap(_encode)
        else:
            examples = records | "As they are" >> beam.Map(lambda record: (record, b""))
        _ = (
            examples
            | "Finish" >> beam.ParDo(_Finish(plan))
            | "By shard" >> beam.GroupByKey()
            | "Write" >> beam.Map(write_shard, str(output / "examples"), plan.layouts)
        )
    make_reproducible(output / "transform" / "transform_fn", work)


def _is_train(record: bytes) -> bool:
    return bool(tf.train.Example.FromString(record).features.feature["_split"].bytes_list.value[0] == b"train")


def _encode(batch: tuple[Any, dict[str, Any]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (collected record, transformed features as a tf.Example) of each row."""
    table, _ = batch
    column = table.schema.get_field_index(_RECORD)
    records = [row[0] for row in table.column(column).to_pylist()]
    features = table.select([name for name in table.schema.names if name != _RECORD])
    yield from zip(records, RecordBatchToExamplesEncoder().encode(features), strict=True)


class _Finish(beam.DoFn):  # type: ignore[misc]
    """Makes the final example of a record: transformed and raw features, label and key."""

    def __init__(self, plan: Plan) -> None:
        self._raw_names = list(plan.raw_spec)
        self._label_ids = plan.label_ids
        self._layouts = plan.layouts

    def process(self, pair: tuple[bytes, bytes]) -> Iterator[tuple[tuple[Split, int], tuple[str, bytes]]]:
        """Yield ((split, shard), (order key, serialized example))."""
        record, transformed = pair
        collected = tf.train.Example.FromString(record).features.feature
        example = tf.train.Example.FromString(transformed)
        features = example.features.feature
        for name in self._raw_names:
            features[f"raw/{name}"].CopyFrom(collected[name])
        label = _text(collected["_label"])
        if self._label_ids is None:
            features["label"].float_list.value.append(float(label))
        else:
            features["label"].int64_list.value.append(self._label_ids[label])
        progress.count("examples")
        features["key"].CopyFrom(collected["_source"])
        split, order = cast(Split, _text(collected["_split"])), _text(collected["_order"])
        shard = bisect.bisect_right(self._layouts[split].starts, bucket(order)) - 1
        yield (split, shard), (order, bytes(example.SerializeToString(deterministic=True)))


def _text(feature: Any) -> str:
    return str(feature.bytes_list.value[0].decode())
