"""What a sweep tries, without a training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import optuna
import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.environment import Environment
from trainyard.spec.networks import MODEL_FAMILIES
from trainyard.spec.recipe import Recipe
from trainyard_control import api
from trainyard_control.api.progress import SweepScreen
from trainyard_control.planning import cost
from trainyard_control.search import sweep as sweeps
from trainyard_control.search.search_space import Dimension, override, parse, parse_blocks, variant
from trainyard_control.search.study import Study, Sweep
from trainyard_control.search.sweep import Slot
from trainyard_control.search.trials import Result, Trial


def test_values_and_ranges_are_read() -> None:
    over = [
        "train.optimizer.learning_rate=log:1e-4:1e-1",
        "train.batch_size=16:256",
        "model.hidden=[64],[128, 64]",
        "train.precision=float32,bfloat16",
    ]
    rate, size, hidden, precision = parse("digits", [], over)
    assert (rate.low, rate.high, rate.log, rate.values) == (1e-4, 1e-1, True, ())
    assert (size.low, size.high, size.log) == (16, 256, False) and isinstance(size.low, int)
    assert hidden.values == ([64], [128, 64]) and precision.values == ("float32", "bfloat16")
    assert rate.value(0.00123456789) == 0.00123457 and rate.value(0.1 + 1e-12) == 0.1
    assert [hidden.value(hidden.parameters(value)[hidden.key]) for value in hidden.values] == [[64], [128, 64]]


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ("train.optimizer.learning_rat=0.1,0.2", "Did you mean 'learning_rate'"),
        ("train.epochs", "has no values"),
        ("train.epochs=", "has no values"),
        ("train.epochs=3", "needs two or more different values"),
        ("train.epochs=3,3", "needs two or more different values"),
        ("train.epochs=8:2", "the range is empty"),
        ("train.optimizer.learning_rate=log:0:0.1", "the range is empty. Give a lower end above 0"),
        ("train.optimizer.learning_rate=1e-4:1e", "'1e' is not a number"),
        ("train.optimizer.learning_rate=1e-4:inf", "'inf' is not a number"),
        ("train.epochs=0:10", "train.epochs"),
        ("model.name=cnn_small,mpl", "mpl"),
        ("evaluate.worst=1,2", "no model depends on it. Keys of data, model, seed, train can be tried"),
        ("train.epochs=[3", "train.epochs"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_starts(over: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        parse("digits", [], [over])


def test_trees_and_networks_leave_out_what_a_recipe_sets_for_the_other() -> None:
    changes = ["train.early_stopping.patience=3", "model.hidden=[8]"]
    space = parse("tabular", changes, ["model.name=mlp,boosted_trees"])
    assert space[0].values == ("mlp", "boosted_trees")
    trees = variant("tabular", changes, {"model.name": "boosted_trees", "model.trees.max_iter": 9})
    assert (trees.model.trees.max_iter, trees.model.hidden, trees.train.epochs) == (9, [64, 32], 10)
    assert trees.train.early_stopping == variant("tabular", changes, {"model.name": "mlp"}).train.early_stopping
    assert variant("tabular", changes, {"model.name": "mlp"}).train.epochs == 40
    with pytest.raises(ConfigurationError, match=r"train\.batch_size: is of networks, and boosted_trees has none"):
        variant("tabular", changes, {"model.name": "boosted_trees", "train.batch_size": 8})


def test_the_space_of_blocks_draws_networks_that_a_recipe_takes_and_knows_again() -> None:
    space = parse_blocks("digits", [], "2:4 conv|separable|residual:16|32:1|2")
    assert space.size == 12**2 + 12**3 + 12**4
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    drawn = [study.ask() for _ in range(30)]
    values = [space.suggest(trial) for trial in drawn]
    assert {value.count("pool") for value in values} == {1, 2, 3}
    assert [space.parameters(value) for value in values] == [trial.params for trial in drawn]
    for value in values[:5]:
        assert recipes.load("digits", [override(space.key, value)]).model.blocks == value
    assert ["residual:16", "pool", "residual:16"] in space.cheapest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("2:4 conv|dense:16", "no block 'dense'. Known: conv, separable, residual"),
        ("conv:16|32", "not stages and blocks. Write STAGES"),
        ("4:2 conv:16|32", "4:2 stages are an empty range"),
        ("2:3 conv:16|x", "'conv:x:1': is no block"),
        ("2:3 conv:16|16", "has a repeated value"),
        ("2 conv:16", "allows only one network"),
    ],
)
def test_a_space_of_blocks_that_does_not_parse_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        parse_blocks("digits", [], text)


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ('["conv3:32"]', "no block 'conv3'. Known: conv, separable, residual, pool"),
        ('["conv"]', "is no block. Write KIND:CHANNELS"),
        ('["conv:32:99"]', "16 repeats are the most"),
        ("[]", "at least 1 item"),
    ],
)
def test_blocks_that_do_not_parse_are_refused(blocks: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        recipes.load("digits", [f"model.blocks={blocks}"])


def test_blocks_are_of_cnn_small_and_leave_a_position() -> None:
    with pytest.raises(ConfigurationError, match="'mlp' has none to choose"):
        recipes.load("tabular", ['model.blocks=["conv:3"]'])
    with pytest.raises(ConfigurationError, match="leave nothing of 8 x 8 pixels, but of 16 x 16"):
        recipes.load("digits", [f"model.blocks={['conv:3', *['pool'] * 4]}", "data.image_size=[8,8]"])
    assert recipes.load("digits", ['model.blocks=["conv:3:1"]']).model.blocks == ["conv:3"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_parallel": 0}, "max_parallel 0: each trial needs its own core"),
        ({"max_parallel": 1000}, "max_parallel 1000: each trial needs its own core"),
        ({"latency_budget": "2"}, "not a duration. Write it such as 2ms"),
        ({"latency_budget": "0ms"}, "not a duration"),
        ({"blocks": "2:5 conv:16|32"}, "leave nothing of 8 pixels. Give at most 4 stages"),
        ({"blocks": "1:2 conv:16|32", "over": {"model.blocks": ["[conv:3]", "[conv:4]"]}}, "Leave one out"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_starts(options: dict[str, Any], sentence: str) -> None:
    options = {"over": {} if "blocks" in options else {"train__epochs": [1, 2]}} | options
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        api.sweep("digits", **options)


@pytest.fixture
def here(tmp_path: Path) -> Environment:
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    return environments.load(str(tmp_path / "here.yaml"))


def test_threads_take_each_trial_once_and_what_was_begun_goes_on(here: Environment) -> None:
    sweep = Sweep("digits", [], [Dimension("model.dropout", low=0.0, high=0.5)], here, trials=8, max_parallel=2)
    study = Study(sweep)
    first = [study.take() for _ in range(4)]
    for trial, drawn in (sampled for sampled in first[1:3] if sampled):
        study.end(ended(trial, trial.values["model.dropout"]), drawn)
    assert [trial.state for trial in study.trials] == ["begun", "complete", "complete", "begun"]
    again = Study(sweep)
    sampled: list[Trial] = []

    def work_on(_: Slot) -> None:
        while entry := again.take():
            trial, drawn = entry
            sampled.append(trial)
            again.end(ended(trial, 0.5), drawn)

    sweeps.work([None, None], work_on)
    assert sorted(trial.number for trial in sampled) == [0, 3, 4, 5, 6, 7]
    begun = {trial.number: trial.values for trial, _ in filter(None, first)}
    assert all(trial.values == begun[trial.number] for trial in sampled if trial.number in begun)
    assert {trial.state for trial in Study(sweep).trials} == {"complete"} and Study(sweep).take() is None


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An answer takes a millisecond a block: what TensorFlow would measure. Holds what was timed."""
    block_counts: list[int] = []

    def untrained(recipe: Recipe, *_: object) -> float:
        block_counts.append(len(recipe.model.blocks or []))
        return float(block_counts[-1])

    monkeypatch.setattr(sweeps, "untrained", untrained)
    return block_counts


def test_networks_over_the_budget_are_left_out_untrained_and_others_drawn(here: Environment, timed: list[int]) -> None:
    space = parse_blocks("digits", [], "1:4 conv|separable:16|32:1|2")
    study = Study(Sweep("digits", [], [space], here, trials=5, latency_budget=3.0))
    sweeps.require_possible(study.sweep)
    assert timed == [1]  # the first of the cheapest meets it
    trained: list[Trial] = []

    def train(trial: Trial, _: object, __: Slot) -> Trial:
        trained.append(trial)
        return ended(trial, len(trained) / 10)

    sweeps.in_slots(study, [None], train, SweepScreen(5, "accuracy"))
    assert len(trained) == 5 and max(timed) > 3
    assert sum(trial.draws for trial in Study(study.sweep).trials) == len(
        [block_count for block_count in timed if block_count > 3]
    )
    assert all(trial.milliseconds == len(trial.values["model.blocks"]) <= 3 for trial in trained)


def test_a_combination_over_the_budget_is_left_out_and_none_is_trained_in_its_place(
    here: Environment, timed: list[int]
) -> None:
    few, many = ["conv:8"], ["conv:8", "conv:8", "conv:8"]
    study = Study(Sweep("digits", [], [Dimension("model.blocks", values=(few, many))], here, latency_budget=2.0))
    sweeps.in_slots(study, [None], lambda trial, *_: ended(trial, 0.5), SweepScreen(2, "accuracy"))
    left = next(trial for trial in study.trials if trial.state == "skipped")
    assert (left.values["model.blocks"], left.milliseconds) == (many, 3.0) and len(timed) == 2
    assert "takes 3 ms on one core, and the budget is 2 ms" in left.why
    assert study.best and study.best.values["model.blocks"] == few and Study(study.sweep).take() is None


def test_a_budget_that_no_network_meets_is_refused(here: Environment, timed: list[int]) -> None:
    space = parse_blocks("digits", [], "2:3 conv|residual:16|32")
    with pytest.raises(ConfigurationError, match="no network of these blocks meets it; the smallest takes 3 ms"):
        sweeps.require_possible(Sweep("digits", [], [space], here, latency_budget=1.0))
    assert sorted(timed) == [3, 3, 5, 5]


def test_nothing_is_tried_twice_while_there_is_something_else(here: Environment) -> None:
    study = Study(Sweep("digits", [], [Dimension("train.epochs", low=1, high=4)], here, trials=6))
    sampled = [sampled[0].values["train.epochs"] for _ in range(6) if (sampled := study.take())]
    assert {*sampled[:4]} == {1, 2, 3, 4} and len(sampled) == 6


def ended(trial: Trial, metric: float) -> Trial:
    return trial.model_copy(update={"state": "complete", "metric": metric, "seconds": 36.0})


def test_the_first_error_ends_the_other_slots() -> None:
    def work_on(slot: Slot) -> None:
        if slot.cores == {0}:
            raise ValueError("a")
        slot.stop.interrupted.wait(60)

    with pytest.raises(ValueError, match="a"):
        sweeps.work([frozenset({0}), frozenset({1}), frozenset({2})], work_on)


def test_a_trial_costs_what_the_environment_says_of_its_share_of_the_machine(tmp_path: Path) -> None:
    room = "{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}"
    pools = f"pools: {{here: {{kind: cpu, price_per_hour: 2, resources: {room}}}}}\nplacement: {{default: here}}\n"
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n{pools}")
    environment = environments.load(str(tmp_path / "here.yaml"))
    sweep = Sweep("digits", [], [Dimension("train.epochs", values=(1, 2))], environment, max_parallel=2)
    study = Study(sweep)
    sampled = study.take()
    assert sampled
    study.end(ended(sampled[0], 0.5), sampled[1])
    assert study.trials[0].dollars == 0.01  # 36 s of half of a machine of 2 dollars an hour


def test_a_family_leads_from_the_cheapest_network_to_the_dearest() -> None:
    for names in MODEL_FAMILIES.values():
        costs = [cost.named(name, (224, 224, 3), 10).flops_per_example for name in names]
        assert costs == sorted(costs) and costs[-1] > 10 * costs[0]


def test_a_family_is_no_list_of_networks_for_a_table_and_nothing_to_try_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean 'efficient'[?] Known: basic"):
        api.sweep("digits", family="eficient")
    with pytest.raises(ConfigurationError, match="Nothing to try"):
        api.sweep("digits")
    with pytest.raises(ConfigurationError, match="mobilenet_v3_small"):
        api.sweep("tabular", family="basic")


def test_each_combination_is_tried_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text(f"target: local\nstorage: {tmp_path}/storage\n")
    here = environments.load(str(tmp_path / "here.yaml"))
    dimensions = [Dimension("train.epochs", values=(1, 2)), Dimension("train.batch_size", values=(16, 32, 64))]
    sweep = Sweep("digits", [], dimensions, here)
    combinations = sweep.combinations
    assert combinations is not None and sweep.count == 6 and len({*combinations}) == 6
    assert Sweep("digits", [], dimensions, here).combinations == combinations
    assert Sweep("digits", [], dimensions, here, trials=4).count == 4
    ranged = [*dimensions, Dimension("model.dropout", low=0.0, high=0.5)]
    assert Sweep("digits", [], ranged, here).combinations is None and Sweep("digits", [], ranged, here).count == 12
    # More trials go on in the same folder, another search has its own.
    assert sweep.folder == Sweep("digits", [], dimensions, here, trials=4).folder
    assert sweep.folder != Sweep("digits", [], dimensions[:1], here).folder


def test_a_sweep_of_programs_whose_cost_nobody_counts_has_a_page_without_it(tmp_path: Path) -> None:
    program_trials = [Trial(number=n, values={"seed": n}, state="complete", metric=0.5, best_epoch=1) for n in (1, 2)]
    recipe = recipes.load("digits")
    over = [Dimension("seed", values=(1, 2))]
    page = Result(str(tmp_path), over, program_trials, program_trials[0], recipe, None, {}).page()
    assert "The search" in page and "What it costs" not in page


def test_of_equal_trials_the_best_is_the_one_on_the_front(tmp_path: Path) -> None:
    trials = [
        Trial(number=n, values={"seed": n}, state="complete", metric=0.5, eval_loss=loss)
        for n, loss in enumerate([0.3, 0.1, 0.2])
    ]
    result = Result(
        str(tmp_path), [Dimension("seed", values=(0, 1, 2))], trials, trials[1], recipes.load("digits"), None, {}
    )
    assert result.front == [result.best]
