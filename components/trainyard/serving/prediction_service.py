"""TensorFlow Serving's gRPC services PredictionService and ModelService, in the messages of tensorflow-serving-api.

Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.json_format import ParseDict
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    regression_pb2,
)

from trainyard.serving import raw_tensors
from trainyard.serving.bad_request import BadRequest, shown
from trainyard.serving.records import SIGNATURE, Records, Row, require_signature
from trainyard.serving.service import Service, aside, signature_definition, version_status
from trainyard.serving.versions import LoadedModel

PREDICTION = "tensorflow.serving.PredictionService"
MODEL = "tensorflow.serving.ModelService"
_FIELDS = {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}

Methods = dict[str, tuple[type[Any], type[Any], Callable[[Any], Awaitable[Any]]]]
"""The classes of request and answer, and the function that answers, by the name of the method."""


class PredictionService:
    """Answers the methods by `service`. request_bytes: bounds the values of a tensor that repeats its last one."""

    def __init__(self, service: Service, request_bytes: int) -> None:
        self._service, self._most_values = service, request_bytes

    def services(self) -> dict[str, Methods]:
        """Return the methods of each service."""
        prediction: Methods = {
            "Predict": (predict_pb2.PredictRequest, predict_pb2.PredictResponse, self._predict),
            "Classify": (
                classification_pb2.ClassificationRequest,
                classification_pb2.ClassificationResponse,
                self._classify,
            ),
            "Regress": (regression_pb2.RegressionRequest, regression_pb2.RegressionResponse, self._regress),
            "GetModelMetadata": (
                get_model_metadata_pb2.GetModelMetadataRequest,
                get_model_metadata_pb2.GetModelMetadataResponse,
                self._metadata,
            ),
        }
        status = get_model_status_pb2.GetModelStatusRequest, get_model_status_pb2.GetModelStatusResponse, self._status
        return {PREDICTION: prediction, MODEL: {"GetModelStatus": status}}

    def _model(self, spec: Any) -> LoadedModel:
        """Return the model that a ModelSpec names; its signature must be the one that is served."""
        require_signature(spec.signature_name, "model_spec.signature_name")
        version = str(spec.version.value) if spec.HasField("version") else ""
        return self._service.model(spec.name, version, spec.version_label)

    def _spec(self, model: LoadedModel, signature: str = SIGNATURE) -> dict[str, Any]:
        return {"name": self._service.name, "version": str(model.number), "signature_name": signature}

    async def _predict(self, request: Any) -> Any:
        model = self._model(request.model_spec)
        rows = await aside(lambda: model.records.tensor_rows(self._columns(request, model)), request.ByteSize())
        outputs = await self._service.infer(model, rows, list(request.output_filter))
        answer = ParseDict({"model_spec": self._spec(model)}, predict_pb2.PredictResponse())
        for output in outputs:
            answer.outputs[output.name].CopyFrom(tf.make_tensor_proto(output.values))
        return answer

    def _columns(self, request: Any, model: LoadedModel) -> list[tuple[str, list[Any]]]:
        return [
            (name, self._values(tensor, name, is_decimal=name in model.records.decimals))
            for name, tensor in request.inputs.items()
        ]

    def _values(self, tensor: Any, name: str, *, is_decimal: bool) -> list[Any]:
        """Return the values of a TensorProto (n,) or (n, 1), as `raw_tensors.listed` does."""
        place, shape = f"inputs.{name[:100]}", [size.size for size in tensor.tensor_shape.dim]
        if not shape or min(shape) < 0 or shape[1:] not in ([], [1]):
            raise BadRequest(f"{place}: a tensor [n] or [n, 1] is expected, {shown(shape)} was found.")
        if shape[0] > self._most_values:  # a short request may claim any number of values
            raise BadRequest(f"{place}: at most {self._most_values:,} values are allowed, {shape[0]:,} were found.")
        try:
            values = tf.make_ndarray(tensor).reshape(-1)
        except (TypeError, ValueError, KeyError) as error:
            raise BadRequest(f"{place}: its values are not those of its dtype and shape ({error}).") from error
        if values.dtype.kind in "Ob":  # texts, truth values
            return list(values.tolist())
        if values.dtype.name == "bfloat16":
            values = values.astype(np.float32)
        if values.dtype.kind not in "iuf":
            raise BadRequest(f"{place}: numbers or texts are expected, {values.dtype.name} was found.")
        return raw_tensors.listed(values, is_decimal=is_decimal)

    async def _classify(self, request: Any) -> Any:
        model, classes = await self._answered(request, "classify")
        answer = ParseDict({"model_spec": self._spec(model)}, classification_pb2.ClassificationResponse())
        for scores in classes:
            found = answer.result.classifications.add()
            for label, score in scores:
                found.classes.add(label=label, score=score)
        return answer

    async def _regress(self, request: Any) -> Any:
        model, values = await self._answered(request, "regress")
        answer = ParseDict({"model_spec": self._spec(model)}, regression_pb2.RegressionResponse())
        for value in values:
            answer.result.regressions.add(value=value)
        return answer

    async def _answered(self, request: Any, method: str) -> tuple[LoadedModel, list[Any]]:
        model = self._model(request.model_spec)
        rows = await aside(lambda: _example_rows(request.input, model.records), request.ByteSize())
        return model, await self._service.results(model, rows, method)

    async def _metadata(self, request: Any) -> Any:
        model = self._model(request.model_spec)
        for field in request.metadata_field or ["none"]:
            if field != "signature_def":
                raise BadRequest(f"metadata_field: signature_def is expected, {shown(field)} was found.")
        answer = ParseDict(
            {"model_spec": self._spec(model, signature="")}, get_model_metadata_pb2.GetModelMetadataResponse()
        )
        signatures = {"signature_def": {SIGNATURE: signature_definition(self._service.about_model(model))}}
        answer.metadata["signature_def"].Pack(ParseDict(signatures, get_model_metadata_pb2.SignatureDefMap()))
        return answer

    async def _status(self, request: Any) -> Any:
        return ParseDict(version_status(self._model(request.model_spec)), get_model_status_pb2.GetModelStatusResponse())


def _example_rows(request: Any, records: Records) -> Sequence[Row]:
    """Return the rows of an Input: a list of tf.Example, and the features that all of them share."""
    kind = request.WhichOneof("kind")
    examples = getattr(request, kind).examples if kind else []
    shared = request.example_list_with_context.context if kind == "example_list_with_context" else None
    found = [_features(example, records) for example in examples]
    return records.example_rows(found, _features(shared, records) if shared is not None else {}, bare=True)


def _features(example: Any, records: Records) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = np.array(getattr(feature, kind).value, _FIELDS[kind]) if kind else np.zeros(0, object)
        if kind == "bytes_list":
            features[name] = list(values)
        else:
            features[name] = raw_tensors.listed(values, is_decimal=name in records.decimals)
    return features
