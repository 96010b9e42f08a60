"""A recipe's own model must give logits, one output of them: what ends in probabilities is refused."""

import keras
import numpy as np
import pytest
from tests import small_documents

from trainyard.contract.artifacts.preprocess import Examples, Feature
from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard.steps.train.engines.network import network

FEATURES = [
    Feature(name="n", dtype="float32", shape=(3,)),
    Feature(name="c", dtype="int64", shape=(), vocabulary_size=5),
]
BODY = """
import keras
def build_model(features, outputs):
    inputs = {{f.name: keras.Input(f.shape, name=f.name, dtype=f.dtype) for f in features}}
    c = keras.layers.Embedding(5, 4)(inputs["c"])
    h = keras.layers.Concatenate()([keras.layers.BatchNormalization()(inputs["n"]), c])
    h = keras.layers.Dense(8, activation="relu", name="hidden")(h)
    {code}
    return keras.Model(inputs, y)
"""
NESTED = """inner = keras.layers.Dense(outputs, activation="softmax", name="inner")
    y = keras.Sequential([keras.Input((8,)), inner])(h)"""


def examples(task: str) -> Examples:
    labels = None if task == "regression" else ["a", "b"]
    return small_documents.examples(task=task, labels=labels, features=FEATURES)


def build(code: str, task: str = "classification", precision: str = "float32") -> keras.Model:
    own = {"module": "own.py", "files": {"own.py": BODY.format(code=code)}}
    recipe = recipes.load("digits")
    model = recipe.model.model_copy(update={"name": None})
    recipe = recipe.model_copy(update=own | {"model": model, "task": task})
    return network(recipe, examples(task), (5.0, 2.0), precision)


@pytest.mark.parametrize(
    ("code", "layer"),
    [
        ("y = keras.layers.Dense(outputs, activation='softmax', name='last')(h)", "softmax (layer 'last')"),
        ("y = keras.layers.Softmax(name='s')(keras.layers.Dense(outputs)(h))", "softmax (layer 's')"),
        ("y = keras.layers.Activation('sigmoid', name='a')(keras.layers.Dense(outputs)(h))", "sigmoid (layer 'a')"),
        ("y = keras.layers.Dense(outputs, 'sigmoid', kernel_initializer='zeros', name='z')(h)", "sigmoid (layer 'z')"),
        (NESTED, "softmax (layer 'inner')"),
        ("y = keras.layers.Lambda(keras.ops.softmax, name='f')(keras.layers.Dense(outputs)(h))", "softmax (layer 'f')"),
        ("y = keras.ops.softmax(keras.layers.Dense(outputs)(h))", "softmax (layer 'softmax"),
        ("y = keras.layers.Reshape((2,), name='r')(keras.layers.Dense(2, 'softmax')(h))", "softmax (layer 'r')"),
    ],
)
def test_a_model_that_gives_probabilities_is_refused(code: str, layer: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        build(code)
    assert f"build_model's model ends in {layer}" in str(refused.value)
    assert str(refused.value).endswith("It must give logits: Trainyard adds the softmax.")


def test_a_model_of_several_labels_in_bfloat16_that_gives_probabilities_is_refused() -> None:
    for activation in ("softmax", "sigmoid"):
        with pytest.raises(ConfigurationError, match=rf"ends in {activation} .*: Trainyard adds the sigmoid\.$"):
            build(f"y = keras.layers.Dense(outputs, '{activation}')(h)", "multi_label", "bfloat16")


@pytest.mark.parametrize(
    "code",
    [
        "y = keras.layers.Dense(outputs)(h)",
        "y = keras.layers.Dense(outputs, kernel_initializer='zeros', use_bias=False)(h)",
        "y = keras.layers.Dense(outputs, activation='relu')(h)",
        "y = keras.layers.Dense(outputs, activation='log_softmax')(h)",
        "y = keras.layers.Dense(outputs, bias_initializer=keras.initializers.Constant(0.5))(h * 1e-3)",
        "y = keras.layers.Dense(outputs)(keras.layers.Dense(4, activation='softmax')(h))",
    ],
)
def test_a_model_that_gives_logits_is_taken_with_the_weights_that_it_began_with(code: str) -> None:
    weights = build(code).get_weights()
    for first, second in zip(weights, build(code).get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_regression_may_end_in_a_sigmoid() -> None:
    assert build("y = keras.layers.Dense(outputs, activation='sigmoid')(h)", "regression").count_params()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "y = {'main': keras.layers.Dense(outputs)(h), 'aux': keras.layers.Dense(1)(h)}",
            r"with 2 outputs maps c, n to \(None, \d\), \(None, \d\). It must map c, n to one output, \(None, 2\)",
        ),
        ("y = [keras.layers.Dense(outputs)(h)]", "gives its output in a list. Return keras.Model"),
        ("y = {'main': keras.layers.Dense(outputs)(h)}", "gives its output in a dict. Return keras.Model"),
        (
            "y = keras.layers.Dense(3)(h)",
            r"maps c, n to \(None, 3\). It must map c, n to one output, \(None, 2\)",
        ),
    ],
)
def test_a_model_with_other_outputs_is_refused(code: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        build(code)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_model_whose_last_layer_computes_in_float16_gives_float32(task: str) -> None:
    model = build("y = keras.layers.Dense(outputs, dtype='float16')(h)", task)
    assert model.output.dtype == "float32"
