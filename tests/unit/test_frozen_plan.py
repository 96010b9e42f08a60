"""A plan counts that nothing goes backwards through a backbone that does not learn."""

from __future__ import annotations

import pytest

from trainyard.contract.epochs import backbone_share
from trainyard.spec import plain_yaml
from trainyard.spec.documents import parse
from trainyard.spec.environment import Environment
from trainyard.spec.recipe import Recipe
from trainyard_control.planning import cost, plan
from trainyard_control.planning.data import DataSummary
from trainyard_control.planning.hardware import (
    ExampleCost,
    accelerator_hardware,
    communication_seconds,
    needed_bytes,
    step_seconds,
)

DATA = DataSummary(20_000, 2_000, 10, (224, 224, 3))
HEAD = (576 + 1) * 10  # the last layer of mobilenet_v3_small for ten classes
GPUS = accelerator_hardware("float32", "nvidia-tesla-v100", 4, 2, 32, 1e9)
LOCAL = parse("{target: local, storage: runs}", Environment, name="here")


def recipe(model: dict[str, str], train: dict[str, object]) -> Recipe:
    content = {
        "name": "pets",
        "data": {"format": "tfrecord", "path": "gs://bucket/pets/*", "image_size": [224, 224]},
        "model": {"name": "mobilenet_v3_small"} | model,
        "train": {"epochs": 8, "batch_size": 64} | train,
    }
    return parse(plain_yaml.dump(content), Recipe, name="recipe")


WHOLE = recipe({}, {})
TUNED = recipe({"weights": "imagenet"}, {"fine_tune": {"head_epochs": 2}})
FROZEN = recipe({"weights": "imagenet", "freeze": "backbone"}, {})


def works() -> tuple[ExampleCost, ExampleCost, ExampleCost]:
    whole, tuned, frozen = (cost.from_recipe(variant, DATA) for variant in (WHOLE, TUNED, FROZEN))
    return whole, tuned, frozen


def test_a_frozen_backbone_is_passed_once_and_its_head_alone_learns() -> None:
    whole, tuned, frozen = works()
    assert [backbone_share(variant) for variant in (WHOLE, TUNED, FROZEN)] == [1, 0.75, 0]
    assert frozen.flops_per_example == pytest.approx(whole.flops_per_example / 3)
    assert tuned.flops_per_example == pytest.approx(whole.flops_per_example * (2 * 1 + 6 * 3) / (8 * 3))
    assert (whole.learning, frozen.learning) == (whole.parameters, HEAD)
    assert tuned.learning == pytest.approx((2 * HEAD + 6 * whole.parameters) / 8)


def test_steps_sums_and_memory_shrink_with_what_learns() -> None:
    whole, tuned, frozen = works()
    steps = [step_seconds(example_cost, 64, GPUS) for example_cost in (whole, tuned, frozen)]
    assert steps[0] > steps[1] > steps[2]
    sums = [communication_seconds(example_cost, GPUS) for example_cost in (whole, frozen)]
    assert sums[1] / sums[0] == pytest.approx(HEAD / whole.parameters)
    needed = [needed_bytes(example_cost, 64, GPUS) for example_cost in (whole, tuned, frozen)]
    assert needed[0] == needed[1], "the last epochs need the most"
    assert needed[2] == 4 * whole.parameters + 12 * HEAD


def test_the_hours_are_those_of_both_phases() -> None:
    hours = []
    for settings, work in zip((WHOLE, TUNED, FROZEN), works(), strict=True):
        (here,) = plan.candidates(settings, LOCAL, DATA, work, [])
        assert here.hours
        hours.append(here.hours.expected)
    assert hours[0] > hours[1] > hours[2] > 0.2 * hours[0]
