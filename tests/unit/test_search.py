"""What a sweep tries and how a learning curve is drawn, without a training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainyard.contract.artifacts.document import SPLITS
from trainyard.contract.artifacts.train import Device
from trainyard.errors import ConfigurationError
from trainyard.quality.page import write_html
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard.spec.networks import LADDERS
from trainyard.steps.preprocess.split import assign
from trainyard_control import api
from trainyard_control.planning import cost
from trainyard_control.search import learning_curve
from trainyard_control.search.chart import Mark, chart
from trainyard_control.search.learning_curve import Point, curve_page
from trainyard_control.search.space import Dimension, parse
from trainyard_control.search.speed.certificate import Certificate
from trainyard_control.search.speed.speed import Speed
from trainyard_control.search.sweep import Sweep


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
    assert [hidden.value(hidden.drawn(value)) for value in hidden.values] == [[64], [128, 64]]


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ("train.optimizer.learning_rat=0.1,0.2", "Did you mean 'learning_rate'"),
        ("train.epochs", "has no values"),
        ("train.epochs=", "has no values"),
        ("train.epochs=3", "fewer than two values"),
        ("train.epochs=3,3", "fewer than two values, or one twice"),
        ("train.epochs=8:2", "the range is empty"),
        ("train.optimizer.learning_rate=log:0:0.1", "the range is empty. Give a lower end above 0"),
        ("train.optimizer.learning_rate=1e-4:1e", "'1e' is no number"),
        ("train.optimizer.learning_rate=1e-4:inf", "'inf' is no number"),
        ("train.epochs=0:10", "train.epochs"),
        ("model.name=cnn_small,mpl", "mpl"),
        ("evaluate.worst=1,2", "no model depends on it. Keys of data, model, seed, train can be tried"),
        ("train.epochs=[3", "train.epochs"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_starts(over: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse("digits", [], [over])
    assert sentence in str(raised.value)


def test_a_ladder_leads_from_the_cheapest_network_to_the_dearest() -> None:
    for names in LADDERS.values():
        costs = [cost.named(name, (224, 224, 3), 10).flops_per_example for name in names]
        assert costs == sorted(costs) and costs[-1] > 10 * costs[0]


def test_a_ladder_is_no_list_of_networks_for_a_table_and_nothing_to_try_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean 'efficient'[?] Known: basic"):
        api.sweep("digits", ladder="eficient")
    with pytest.raises(ConfigurationError, match="nothing to try"):
        api.sweep("digits")
    with pytest.raises(ConfigurationError, match="mobilenet_v3_small"):
        api.sweep("tabular", ladder="basic")


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


def test_a_share_of_the_data_is_within_a_larger_one_and_leaves_the_other_splits_whole() -> None:
    count = 4000
    contents = [number.to_bytes(4, "big") for number in range(count)]
    batch = pa.record_batch(
        {"content": contents, "source": ["a"] * count, "label": ["b"] * count},
        schema=pa.schema({"content": pa.binary(), "source": pa.string(), "label": pa.string()}),
    )
    used = {}
    for fraction in (0.1, 0.4, 1.0):
        data = recipes.load("digits", [f"data.fraction={fraction}"]).data
        rows, _ = assign(batch, 1, data)
        used[fraction] = {
            split: {
                content
                for content, place in zip(rows["content"].to_pylist(), rows["split"].to_pylist(), strict=True)
                if place == number
            }
            for number, split in enumerate(SPLITS)
        }
    assert used[0.1]["train"] < used[0.4]["train"] < used[1.0]["train"]
    assert len(used[0.4]["train"]) == pytest.approx(0.4 * len(used[1.0]["train"]), rel=0.08)
    for split in ("eval", "test"):
        assert used[0.1][split] == used[0.4][split] == used[1.0][split] != set()


def points(exponent: float, noise: float, classes: dict[str, float] | None = None) -> list[Point]:
    random = np.random.default_rng(3)
    drawn = []
    for fraction in (0.1, 0.2, 0.4, 0.8, 1.0):
        examples = round(20_000 * fraction)
        error = 2.0 * examples**-exponent * math.exp(noise * random.normal())
        drawn.append(Point(fraction, examples, error, error * 0.9, error * 1.1, max(noise, 0.01), classes or {}))
    return drawn


def test_a_power_law_is_found_again_with_an_interval_that_holds_it() -> None:
    exact = learning_curve.fit(points(0.35, 0.0))
    assert exact.exponent == pytest.approx(0.35, abs=1e-9) and exact.scale == pytest.approx(2.0)
    assert exact.gain(20_000)[0] == pytest.approx(2.0 * 20_000**-0.35 * (1 - 2**-0.35))
    noisy = learning_curve.fit(points(0.35, 0.05))
    value, low, high = noisy.gain(20_000)
    assert low < 2.0 * 20_000**-0.35 * (1 - 2**-0.35) < high and low < value < high
    assert low > 0 and "may be nothing" not in learning_curve.sentence(points(0.35, 0.05), noisy, is_percentage=True)
    flat = points(0.0, 0.05)
    assert "the points do not tell" in learning_curve.sentence(flat, learning_curve.fit(flat), is_percentage=False)


@pytest.mark.parametrize("text", ["0.5,1", "a,b,c", "0,0.5,1", "0.5,1,1.5", "1,1,1", "nan,0.5,1"])
def test_a_power_law_of_too_few_or_wrong_shares_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--fractions"):
        learning_curve.fractions(text)


def test_the_page_of_a_curve_is_whole_and_holds_no_script(tmp_path: Path) -> None:
    drawn = points(0.35, 0.05)
    law = learning_curve.fit(drawn)
    write_html(curve_page("<b>", drawn, law, "twice & more", "test error"), tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert page.count("<circle") == 5 and page.count("<polyline") == 1 and page.count("<polygon") == 1
    assert "<script" not in page and "&lt;b&gt;" in page and "twice &amp; more" in page
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_html(curve_page("a", drawn, law, "", "test error"), tmp_path / "nowhere" / "a.html")


def test_a_chart_places_its_marks_within_its_axes() -> None:
    drawn = chart("a", ("x", "y"), [Mark(1, 0.5), Mark(1000, 0.5)], log_x=True)
    assert drawn.x.start < drawn.x.at(1) < drawn.x.at(1000) < drawn.x.end
    assert drawn.x.at(31.6227766) == pytest.approx((drawn.x.at(1) + drawn.x.at(1000)) / 2, abs=0.1)
    assert [name for _, name in drawn.x.ticks] == ["1", "10", "100", "1000"]
    assert drawn.y.low < 0.5 < drawn.y.high  # all values are equal
    named = chart("a", ("x", "y"), [Mark(0, 1), Mark(1, 2)], categories=("cnn_small", "alexnet"))
    assert [name for _, name in named.x.ticks] == ["cnn_small", "alexnet"]
    crowded = chart("a", ("x", "y"), [Mark(0, 1)], categories=LADDERS["efficient"])
    names = [name for _, name in crowded.x.ticks]
    assert names[-1] == "effic…v2_b3" and len(set(names)) == len(names)


def speed(setting: str, mean: float, ceiling: float = 0, **values: int) -> Speed:
    """One whose epochs differ by a tenth of the mean."""
    return Speed(
        setting=setting,
        values=dict(values),
        batch_size=64,
        examples_per_second=mean,
        low=0.95 * mean,
        high=1.05 * mean,
        input_examples_per_second=max(mean, ceiling),
        tflops=0.1,
        peak_share=0.5,
        first_step_seconds=1.0,
    )


@pytest.mark.parametrize(
    ("speeds", "device", "sentences"),
    [
        (
            [speed("as it is", 100), speed("XLA", 104)],
            "CPU:0",
            ["on the CPU", "No published peak for this CPU", "No setting is faster"],
        ),
        (
            [speed("as it is", 100, ceiling=200), speed("batch 128", 150, batch=128)],
            "GPU:0",
            [
                "It trains on GPU.",
                "no published peak",
                "batch 128 is 1.50 times as fast (batch: 128)",
                "waits for its input in 50%",
            ],
        ),
    ],
)
def test_a_certificate_says_what_is_faster_by_more_than_noise(
    speeds: list[Speed], device: str, sentences: list[str]
) -> None:
    certificate = Certificate(
        recipe="a",
        model="mlp",
        parameters=1,
        flops_per_example=1.0,
        machine="",
        cores=2,
        devices=[Device(name=device, product="", memory_bytes=0, tflops=1.0, gb_per_second=1.0)],
        versions={},
        measured="",
        speeds=speeds,
        left_out={},
    )
    assert len(certificate.sentences) == len(sentences)
    assert all(part in said for part, said in zip(sentences, certificate.sentences, strict=True))
