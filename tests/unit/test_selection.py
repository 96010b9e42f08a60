"""What chooses the epoch to keep: the key, the first gate, or the loss; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.contract.artifacts.train import Epoch, best_first
from trainyard.spec import selection
from trainyard.spec.recipe import Recipe
from trainyard.spec.selection import BY_LOSS, Selection

TABLE = {"format": "csv", "path": "a.csv", "label": "y", "features": {"x": {"type": "numeric"}}}


def recipe(task: str = "classification", data: dict[str, Any] | None = None, **sections: Any) -> Recipe:
    separator = {"label_separator": ";"} if task == "multi_label" else {}
    table = {name: value for name, value in TABLE.items() if not (data and name == "label")}
    parts = {"name": "a", "task": task, "data": table | separator | (data or {}), "model": {"name": "mlp"}}
    return Recipe.model_validate(parts | sections)


def chosen(gate: dict[str, Any] | None, **sections: Any) -> str:
    gates = [] if gate is None else [{"min": 0.1} | gate]
    slices = {"slices": ["x"]}
    return str(selection.selection(recipe(evaluate={"gates": gates} | slices, **sections)))


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (None, "loss"),
        ({"metric": "accuracy"}, "accuracy"),
        ({"metric": "pr_auc", "class": "rare"}, "pr_auc of rare"),
        ({"metric": "f1", "class": "rare"}, "f1 of rare"),
        ({"metric": "recall", "class": "rare"}, "loss"),  # best for the answer rare to everything
        ({"metric": "calibration_error", "min": None, "max": 0.1}, "loss"),
        ({"metric": "accuracy", "slice": "x=1"}, "loss"),
        ({"metric": "accuracy", "min": None, "max": 0.1, "largest_gap_between": "x"}, "loss"),
        ({"metric": "accuracy", "min": None, "min_difference": 0.1, "against": "boosted"}, "accuracy"),
    ],
)
def test_the_first_gate_chooses_if_its_metric_orders_whole_models(gate: dict[str, Any], expected: str) -> None:
    assert chosen(gate) == expected


def test_what_a_threshold_decides_later_chooses_no_epoch() -> None:
    threshold = {"threshold": {"maximize": "f1", "class": "rare"}}
    assert chosen({"metric": "f1", "class": "rare"}, **threshold) == "loss"
    assert chosen({"metric": "pr_auc", "class": "rare"}, **threshold) == "pr_auc of rare"


def test_the_key_comes_before_the_gate_and_a_metric_of_the_module_chooses_nothing() -> None:
    assert chosen({"metric": "accuracy"}, train={"select": "loss"}) == "loss"
    assert chosen({"metric": "accuracy"}, train={"select": {"metric": "roc_auc", "class": 1}}) == "roc_auc of 1"
    assert chosen({"metric": "profit"}, module="a.py") == "loss"
    regression = recipe("regression", {"targets": ["u", "v"]}, train={"select": {"metric": "r2", "target": "v"}})
    assert selection.selection(regression) == Selection(metric="r2", target="v")


def test_a_gate_names_the_trained_model_only_by_its_metric() -> None:
    gates = [{"metric": "accuracy", "min": 0.5}], [{"metric": "accuracy", "min": 0.9}]
    first, other = (selection.digest(recipe(evaluate={"gates": each})) for each in gates)
    assert first == other == "select accuracy"
    assert selection.digest(recipe()) == ""
    explicit = recipe(train={"select": "accuracy"}, evaluate={"gates": gates[0]})
    assert selection.digest(explicit) == ""  # the section train has it


@pytest.mark.parametrize(
    ("task", "select", "sentence"),
    [
        ("classification", "acuracy", "no such metric 'acuracy'. Did you mean 'accuracy'? Known: loss, accuracy"),
        ("classification", "mae", "'mae' is no metric of a classification. Known: loss, accuracy"),
        ("classification", "f1", "'f1' is of one class. Write {metric: f1, class: NAME}, or accuracy"),
        ("classification", "recall", "'recall' is of one class. Write {metric: pr_auc, class: NAME}, or accuracy"),
        ("classification", "calibration_error", "frequencies of the classes. Write log_loss"),
        ("classification", {"metric": "recall", "class": "a"}, "'recall' is best for a model that gives every"),
        ("classification", {"metric": "accuracy", "class": "a"}, "'accuracy' is over all classes. One class has f1"),
        ("classification", {"metric": "loss", "class": "a"}, "Leave class and target out"),
        ("regression", {"metric": "r2", "class": "a"}, "a regression has no classes"),
        ("regression", {"metric": "r2", "target": "a"}, "'a' is not in data.targets"),
        ("regression", "accuracy", "'accuracy' is no metric of a regression. Known: loss, mae, rmse, r2"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_works(task: str, select: object, sentence: str) -> None:
    faults = list(selection.faults(_unchecked(task, select)))
    assert len(faults) == 1 and sentence in faults[0]
    with pytest.raises(ValueError, match="contradictions"):
        recipe(task, train={"select": select})


def _unchecked(task: str, select: object) -> Recipe:
    made = recipe(task)
    train = type(made.train).model_validate({"select": select})
    return made.model_copy(update={"train": train})


def test_a_program_and_a_threshold_refuse_it_where_they_decide() -> None:
    with pytest.raises(ValueError, match="contradictions"):
        recipe(train={"command": ["python", "a.py"], "select": "accuracy"}, model={})
    [fault] = selection.faults(_unchecked("classification", "accuracy").model_copy(update={"threshold": object()}))
    assert fault.endswith("which is chosen after the training. Write pr_auc")


def test_equal_values_are_ordered_by_the_loss_and_then_by_time() -> None:
    def epoch(number: int, loss: float, selected: float | None) -> Epoch:
        return Epoch(
            epoch=number, step=number, learning_rate=0.1, train_loss=1, eval_loss=loss, metric=0.5,
            examples_per_second=1, seconds=1, selected=selected,
        )  # fmt: skip

    history = [epoch(1, 0.3, 0.8), epoch(2, 0.2, 0.9), epoch(3, 0.1, 0.9), epoch(4, 0.1, 0.9)]
    assert [each.epoch for each in best_first(history, Selection(metric="accuracy"))] == [3, 4, 2, 1]
    assert next(iter(best_first(history, Selection(metric="rmse")))).epoch == 1
    undefined = [each.model_copy(update={"selected": None}) for each in history]
    assert [each.epoch for each in best_first(undefined, BY_LOSS)] == [3, 4, 2, 1]
