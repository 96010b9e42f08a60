"""The plan: step times from published figures, intervals that narrow with runs, and the choice with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from report_folders import training_with
from tests import small_documents
from typer.testing import CliRunner

from trainyard.contract.artifacts.preprocess import ImageShape, SplitFiles
from trainyard.contract.gang import elastic_gang
from trainyard.errors import ConfigurationError, TransientError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.hardware.pools import Limits, WorkerRange
from trainyard_control.api.forecast import hours
from trainyard_control.cli.main import app
from trainyard_control.planning import cost, data, history
from trainyard_control.planning.hardware import communication_seconds, pool_hardware
from trainyard_control.planning.history import Observation, read_history
from trainyard_control.planning.plan import Candidate, Estimate, candidates, choose, usd

RESNET = cost.named("resnet50", (224, 224, 3), 1000)
POOLS = """
target: kubeflow
platform: gke
storage: gs://bucket/runs
images: {cpu: "example/cpu:1", gpu: "example/gpu:1", tpu: "example/tpu:1"}
pools:
  cpu: {kind: cpu, machine: n1-standard-8, resources: {requests: {cpu: 6, memory: 16Gi}, limits: {memory: 16Gi}}}
  l4: {kind: gpu, accelerator: nvidia-l4, count: 1,
    resources: {requests: {cpu: 6, memory: 24Gi}, limits: {memory: 24Gi}}}
  a100: {kind: gpu, accelerator: nvidia-tesla-a100, count: 1,
    resources: {requests: {cpu: 6, memory: 24Gi}, limits: {memory: 24Gi}}}
  b200: {kind: gpu, accelerator: nvidia-b200, count: 8,
    resources: {requests: {cpu: 6, memory: 24Gi}, limits: {memory: 24Gi}}}
  v7: {kind: tpu, accelerator: tpu7x, topology: 2x2x1, count: 4,
    resources: {requests: {cpu: 6, memory: 24Gi}, limits: {memory: 24Gi}}}
placement: {default: cpu}  # train is placed here too
"""
IMAGENET = """
name: imagenet
data: {format: tfrecord, path: "gs://bucket/imagenet/*", image_size: [224, 224]}
model: {name: resnet50}
train: {epochs: 90, batch_size: 256}
"""


def test_runs_move_the_prediction_and_narrow_its_interval() -> None:
    def observed(number: int) -> list[Observation]:
        return [Observation("CPU", "mlp", 2.0, f"2026-11-{day:02}") for day in range(1, number + 1)]

    factors = [history.factor("CPU", "mlp", observed(number)) for number in (0, 1, 4)]
    assert factors[0].expected == 1
    assert 1.8 < factors[1].expected < factors[2].expected < 2
    widths = [factor.high / factor.low for factor in factors]
    assert widths[0] > widths[1] > widths[2]


def test_runs_of_another_model_on_the_same_hardware_teach_less_and_other_hardware_nothing() -> None:
    own, other, elsewhere = (
        history.factor("CPU", "mlp", [Observation(*seen, 2.0, "1")])
        for seen in (("CPU", "mlp"), ("CPU", "alexnet"), ("nvidia-l4", "mlp"))
    )
    assert own.expected > other.expected > elsewhere.expected == 1


def test_past_errors_are_those_of_what_was_known_before_each_run() -> None:
    seen = [Observation("CPU", "mlp", ratio, str(day)) for day, ratio in enumerate((2.0, 2.0, 2.0))]
    errors = history.past_errors("mlp", "CPU", seen)
    assert errors[0] == pytest.approx(1.0) and abs(errors[1]) < 0.1 and abs(errors[2]) < abs(errors[1])


def here(tmp_path: Path) -> environments.Environment:
    file = tmp_path / "here.yaml"
    file.write_text(f"target: local\nstorage: {tmp_path}\n")
    return environments.load(str(file))


def test_workers_of_one_machine_share_its_cores_and_pods_do_not(tmp_path: Path) -> None:
    write_training(tmp_path, workers=2, replicas=2)
    shared, apart = (next(iter(history.observations(str(tmp_path), one))).ratio for one in (True, False))
    assert shared < apart  # with half the cores each, the same time is nearer to what was predicted


def write_training(root: Path, **values: object) -> None:
    training = {
        "model": "mlp", "parameters": 1000, "examples_per_second": 32000.0, "cores": 2, "flops_per_example": 1e4,
        "activations_per_example": 100, "finished": "2026-11-21T00:00:00+00:00",
    } | values  # fmt: skip
    folder = root / "tabular" / "train" / str(len(list(root.rglob("training.json"))))
    folder.mkdir(parents=True)
    training_with(**training).write(folder)


def test_recorded_runs_are_read_and_those_without_a_cost_are_left_out(tmp_path: Path) -> None:
    write_training(tmp_path)
    write_training(tmp_path, flops_per_example=0.0)
    write_training(tmp_path, hardware="NVIDIA of tomorrow")
    write_training(tmp_path, engine="jax")  # no pool of CPUs trains so
    write_training(tmp_path, hardware="NVIDIA L4", model="alexnet")
    (tmp_path / "tabular" / "train" / "unfinished").mkdir()
    seen = [*history.observations(str(tmp_path), one_machine=True)]
    assert [(known.hardware, known.model) for known in seen] == [("CPU", "mlp"), ("nvidia-l4", "alexnet")]


def pool(name: str, hours_: float, cost_usd: float | None, feasible: bool = True) -> Candidate:
    return Candidate(name, 1, 1, Estimate(1, 2, 3), Estimate(hours_ / 2, hours_, 2 * hours_), cost_usd, feasible)


def reasons(pools: list[Candidate], deadline: float | None = None, budget: float | None = None) -> dict[str, str]:
    """Return why each pool is chosen, or is not, by its name."""
    return {candidate.pool: candidate.why for candidate in choose(pools, deadline, budget)}


@pytest.mark.parametrize(
    ("deadline", "budget", "chosen", "why"),
    [
        (None, None, "middle", "the cheapest of 2 pools whose training takes minutes or hours"),
        (2.0, None, "fast", "the only pool within 2 h; may miss the deadline"),
        (100.0, None, "slow", "the cheapest of 3 pools with a price within 100 h; may miss the deadline"),
        (None, 20.0, "slow", "the cheapest of 2 pools within 20 USD"),
        (30.0, 20.0, "middle", "the only pool within 30 h and 20 USD; may miss the deadline"),
    ],
)
def test_the_cheapest_pool_within_the_limits_is_chosen(
    deadline: float | None, budget: float | None, chosen: str, why: str
) -> None:
    pools = [pool("slow", 90, 5), pool("middle", 20, 15), pool("fast", 2, 40), pool("unpriced", 50, None)]
    picked = [candidate for candidate in choose(pools, deadline, budget) if candidate.chosen]
    assert [(candidate.pool, candidate.why) for candidate in picked] == [(chosen, why)]


def test_a_pool_that_is_not_chosen_says_why() -> None:
    pools = [pool("slow", 90, 5), pool("middle", 20, 15), pool("fast", 2, 40), pool("unpriced", 1, None)]
    within = reasons(pools, 30, 20)
    assert within["slow"] == "takes 90 h, the deadline is 30 h"
    assert within["fast"] == "costs 40.00 USD, the budget is 20"
    assert within["unpriced"] == "no price, so the budget cannot be held: set price_per_hour"
    assert reasons(pools[1:3])["fast"] == "costs 25.00 USD more, 10.0 times as fast"


def test_where_nothing_is_quick_the_fastest_is_chosen_and_where_nothing_is_priced_too() -> None:
    slow = choose([pool("a", 900, 5), pool("b", 600, 50)], None, None)
    assert [candidate.pool for candidate in slow if candidate.chosen] == ["b"]
    unpriced = choose([pool("a", 5, None), pool("b", 3, None)], None, None)
    assert [(candidate.pool, candidate.why) for candidate in unpriced if candidate.chosen] == [
        ("b", "the fastest of 2 pools; it has no price")
    ]
    assert not any(candidate.chosen for candidate in choose([pool("a", 5, 1)], 1, None))


def test_pools_without_a_price_are_ranked_by_speed_beside_the_chosen_one() -> None:
    pools = [pool("priced", 10, 5), pool("slow", 40, None), pool("fast", 2, None)]
    assert reasons(pools) == {
        "priced": "the only pool with a price whose training takes minutes or hours",
        "slow": "no price, 4 times slower than priced, number 2 by speed of 2 without: "
        "set price_per_hour to have its cost compared",
        "fast": "no price, 5 times as fast as priced, number 1 by speed of 2 without: "
        "set price_per_hour to have its cost compared",
    }


def test_without_any_price_more_devices_are_taken_only_where_they_are_faster() -> None:
    one, two = pool("one", 10, None), replace(pool("two", 9.9, None), devices=2)
    assert reasons([one, two]) == {
        "one": "the fastest of 2 pools; it has no price",
        "two": "about as fast as one with more devices",
    }
    faster = choose([one, replace(two, hours=Estimate(2, 5, 8))], None, None)
    assert [candidate.pool for candidate in faster if candidate.chosen] == ["two"]


def test_money_of_less_than_ten_cents_is_no_row_of_noughts() -> None:
    assert [usd(amount) for amount in (0.000723, 0.083, 0.1, 1234.5)] == ["0.00072", "0.083", "0.10", "1,234.50"]


def load(tmp_path: Path) -> tuple[environments.Environment, recipes.Recipe]:
    (tmp_path / "own.yaml").write_text(POOLS)
    (tmp_path / "imagenet.yaml").write_text(IMAGENET)
    return environments.load(str(tmp_path / "own.yaml")), recipes.load(str(tmp_path / "imagenet.yaml"))


def test_every_pool_is_judged_and_what_cannot_train_says_why(tmp_path: Path) -> None:
    environment, recipe = load(tmp_path)
    known = data.DataSummary(1_281_167, 50_000, 1000, (224, 224, 3))
    by_pool = {candidate.pool: candidate for candidate in candidates(recipe, environment, known, RESNET, [])}
    assert by_pool["v7"].why == "images.jax is not in own.yaml" and not by_pool["v7"].feasible
    assert (by_pool["b200"].devices, by_pool["b200"].cost_usd) == (8, None) and by_pool["b200"].feasible
    assert [by_pool[name].duration for name in ("cpu", "l4", "a100")] == ["month", "days", "hours"]
    a100 = by_pool["a100"]
    assert a100.cost_usd is not None and a100.hours is not None
    assert a100.cost_usd == pytest.approx(3.6734 * a100.hours.expected)
    assert by_pool["l4"].tolerations == ("nvidia.com/gpu:NoSchedule",)


def test_input_workers_cost_as_long_as_the_training_and_decode_in_its_place(tmp_path: Path) -> None:
    environment, recipe = load(tmp_path)
    known = data.DataSummary(1_281_167, 50_000, 1000, (224, 224, 3))

    def planned(known: data.DataSummary, **pool: object) -> Candidate:
        fed = environment.model_copy(update={"input_workers": environments.InputWorkers(count=2, pool="feed")})
        cpu = environment.pools["cpu"].model_copy(update=pool)
        fed = fed.model_copy(update={"pools": {**environment.pools, "feed": cpu}})
        return next(candidate for candidate in candidates(recipe, fed, known, RESNET, []) if candidate.pool == "a100")

    (alone,) = (
        candidate for candidate in candidates(recipe, environment, known, RESNET, []) if candidate.pool == "a100"
    )
    assert alone.hours and alone.input_cost_usd is None
    # Two n1-standard-8 of 0.38 USD, of whose 7.91 cores a pod decodes with 4: 1,680 images a core.
    fed = planned(known)
    assert fed.hours and fed.examples_per_second == alone.examples_per_second
    assert fed.input_cost_usd == pytest.approx(2 * 0.38 * fed.hours.expected, rel=1e-3)
    assert fed.cost_usd == pytest.approx((3.6734 + 2 * 0.38) * fed.hours.expected, rel=1e-3)
    assert fed.why == (
        "its input workers decode 13,440 examples/s at most; what else they do, and the network to them, is not counted"
    )
    half = environment.pools["cpu"].resources.model_copy(update={"limits": Limits(cpu="500m", memory="16Gi")})
    slow = planned(known, machine="own", resources=half)
    assert slow.examples_per_second and slow.examples_per_second.expected == pytest.approx(2 * 0.5 * 1680)
    assert slow.why == (
        "bound by decoding on its input workers; its input workers have no price: set price_per_hour of pool 'feed'"
    )
    assert (slow.cost_usd, slow.input_cost_usd) == (None, None)
    limited = planned(replace(known, train=1000))
    assert limited.why == (
        "whether its input workers keep up is not known: nothing of this split is decoded in every epoch"
    )


def test_a_batch_that_is_too_large_is_told_which_parts_would_fit(tmp_path: Path) -> None:
    environment, _ = load(tmp_path)
    known = data.DataSummary(1_281_167, 50_000, 1000, (224, 224, 3))

    def why(*settings: str) -> str:
        recipe = recipes.load(str(tmp_path / "imagenet.yaml"), [*settings])
        return next(
            candidate.why for candidate in candidates(recipe, environment, known, RESNET, []) if candidate.pool == "l4"
        )

    assert why("train.batch_size=1024") == (
        "needs at least 40 GiB a device, of 24; set train.accumulation_steps to 2, or take more devices"
    )
    assert why("train.batch_size=1024", "train.accumulation_steps=2").startswith("needs 20 to 36 GiB a device, of 24")
    assert why("train.batch_size=1024", "train.accumulation_steps=2", "train.xla=true") == "", "XLA frees the rest"


def test_workers_whose_network_nobody_knows_are_not_planned_as_if_they_shared_one_host(tmp_path: Path) -> None:
    environment, recipe = load(tmp_path)
    pools = [environment.pools["l4"].model_copy(update={"workers": 2, "machine": name}) for name in ("own", None)]
    unknown, known = (pool_hardware(recipe, environment, pool) for pool in pools)
    assert (unknown.network, known.network) == (1e9, 2e9)  # chosen; 16 Gbit/s of a g2-standard-8
    assert communication_seconds(RESNET, unknown) > communication_seconds(RESNET, known)


def test_a_range_of_workers_is_priced_with_the_most_and_with_the_fewest_of_which_the_first_is_chosen(
    tmp_path: Path,
) -> None:
    environment, recipe = load(tmp_path)
    ranged = environment.pools["a100"].model_copy(update={"workers": WorkerRange(min=1, max=2)})
    elastic = environment.model_copy(update={"pools": {"a100": ranged}})
    known = data.DataSummary(1_281_167, 50_000, 1000, (224, 224, 3))
    full, fewest = choose(candidates(recipe, elastic, known, RESNET, []), None, None)
    assert [row.workers for row in (full, fewest)] == [2, 1] and (full.chosen, fewest.chosen) == (True, False)
    assert fewest.why == "with 1 worker, if no other comes"
    assert full.hours and fewest.hours and full.hours.expected != fewest.hours.expected
    assert full.cost_usd and fewest.cost_usd and full.cost_usd > fewest.cost_usd
    unequal = recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_size": 97})})
    (row,) = candidates(unequal, elastic, known, RESNET, [])
    with pytest.raises(ConfigurationError) as refused:
        elastic_gang(unequal, ranged)
    assert not row.feasible and f"{refused.value}" == f"imagenet: {row.why}."
    several = recipe.model_copy(update={"train": recipe.train.model_copy(update={"workers": 4})})
    fixed = elastic.model_copy(update={"pools": {"a100": ranged.model_copy(update={"workers": 8})}})
    whys = [row.why for pools in (elastic, fixed) for row in candidates(several, pools, known, RESNET, [])]
    assert whys == [
        f"train.workers: 4 processes were asked for, and the pool's workers: {workers} says how many train. "
        "Leave train.workers out"
        for workers in ("{min: 1, max: 2}", 8)
    ]


def test_a_batch_without_equal_parts_is_no_plan(tmp_path: Path) -> None:
    environment, _ = load(tmp_path)
    for override, parts in (("train.batch_size=100", 8), ("train.accumulation_steps=4", 32)):
        recipe = recipes.load(str(tmp_path / "imagenet.yaml"), ["train.batch_size=100", override])
        by_pool = {
            candidate.pool: candidate
            for candidate in candidates(recipe, environment, data.DataSummary(1, 1, 2, (224, 224, 3)), RESNET, [])
        }
        assert by_pool["b200"].why.startswith(
            f"train.batch_size: 100 examples make no {parts} equal parts, one a device"
        )
        assert by_pool["b200"].why.endswith(f". Give {parts * round(100 / parts)}")


def test_the_number_of_examples_is_found_or_asked_for(tmp_path: Path) -> None:
    _, recipe = load(tmp_path)
    with pytest.raises(ConfigurationError, match="Give --examples N, or run the preprocess step once"):
        data.find(recipe, None, None)
    assert data.find(recipe, None, 1000).train == 1000
    digits = data.find(recipes.load("digits"), None, None)
    assert (digits.train, digits.eval, digits.classes, digits.image) == (1438, 180, 10, (8, 8, 1))
    table = data.find(recipes.load("tabular"), None, None)
    assert (table.train, table.classes, len(table.features)) == (455, 2, 30)


def test_the_json_of_a_plan_has_exactly_the_agreed_keys(tmp_path: Path) -> None:
    load(tmp_path)
    here = tmp_path / "here.yaml"
    here.write_text(f"target: local\nstorage: {tmp_path}/runs\n")
    options = ["-e", str(here), "--examples", "1000", "-o", "json"]
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "imagenet.yaml"), *options])
    assert result.exit_code == 0, result
    (entry,) = json.loads(result.stdout)
    assert [*entry] == [
        "pool", "workers", "devices", "examples_per_second", "hours", "class", "cost_usd", "input_cost_usd", "feasible",
        "chosen", "why",
    ]  # fmt: skip
    assert [*entry["hours"]] == ["low", "expected", "high"] and entry["chosen"]


@pytest.mark.parametrize(("text", "expected"), [("4h", 4), ("90m", 1.5), ("1h30m", 1.5), ("2d", 48)])
def test_times_are_read_as_people_write_them(text: str, expected: float) -> None:
    assert hours(text) == expected


@pytest.mark.parametrize("limits", [["--examples", "0"], ["--budget", "nan"], ["--budget", "-1"], ["--budget", "0"]])
def test_limits_that_no_training_has_are_refused(limits: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", "digits", *limits])
    assert result.exit_code == 2 or isinstance(result.exception, ConfigurationError)
    assert not result.stdout


@pytest.mark.parametrize("text", ["4", "h", "4 hours", "", "0h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Write it such as"):
        hours(text)


def test_the_last_preprocessing_says_how_many_examples_there_are(tmp_path: Path) -> None:
    recipe = recipes.load("digits")
    splits = {
        split: SplitFiles(examples=count, files=[], shard_examples=[], class_counts=None)
        for split, count in {"train": 1446, "eval": 157, "test": 194}.items()
    }
    folder = tmp_path / "digits" / "preprocess" / "key"
    folder.mkdir(parents=True)
    image = ImageShape(height=8, width=8, channels=1)
    small_documents.examples(task="classification", labels=[*"0123456789"], splits=splits, image=image).write(folder)
    summary = data.find(recipe, read_history(here(tmp_path), recipe).examples, None)
    assert (summary.train, summary.eval, summary.image, summary.origin) == (1446, 157, (8, 8, 1), "last preprocessing")

    (folder / "examples.json").write_text((folder / "examples.json").read_text().replace("shard_examples", "of_old"))
    assert read_history(here(tmp_path), recipe).examples is None, "what another version wrote is passed over"


def test_a_bucket_that_cannot_be_read_costs_a_warning_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_control.planning.history.BUCKET_SECONDS", 0.05)
    released = threading.Event()

    def silent(*_: object) -> None:
        released.wait(60)
        raise TransientError("the bucket does not answer")

    monkeypatch.setattr("trainyard_control.planning.history.last_preprocessed", silent)
    memory = read_history(environments.load("gke"), recipes.load("digits"))
    released.set()
    assert memory.observations == [] and "did not tell all of its runs" in memory.warning


def test_a_plan_for_a_cluster_takes_no_tensorflow_and_less_than_a_million_calls(tmp_path: Path) -> None:
    """Calls are the same on every machine. Measured: 690,000 in 1.3 to 2.2 seconds of CPU."""
    load(tmp_path)
    file = tmp_path / "own.yaml"
    storage = f"storage: {tmp_path}/runs\nvolume: {{claim: runs, path: {tmp_path}}}"
    file.write_text(POOLS.replace("storage: gs://bucket/runs", storage))
    script = (
        "import cProfile, json, sys\n"
        "profile = cProfile.Profile(subcalls=False, builtins=False)\n"
        "profile.enable()\n"
        "sys.argv = ['trainyard', 'plan', 'digits', '-e', sys.argv[1], '-o', 'json']\n"
        "from trainyard_control.cli.main import app\n"
        "app(standalone_mode=False)\n"
        "profile.disable()\n"
        "calls = sum(entry.callcount for entry in profile.getstats())\n"
        "print(json.dumps({'calls': calls, 'modules': [*sys.modules]}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    plan, event = (json.loads(line) for line in done.stdout.splitlines())
    assert [entry["pool"] for entry in plan] == ["cpu", "l4", "a100", "b200", "v7"]
    assert not {"tensorflow", "keras", "apache_beam", "kfp", "numpy"} & set(event["modules"])
    assert 100_000 < event["calls"] < 1_000_000
