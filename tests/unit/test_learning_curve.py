"""How a learning curve is measured, fitted and drawn, without a training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.gate import Interval, Verdict
from trainyard.contract.document import SPLITS
from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes
from trainyard.spec.networks import MODEL_FAMILIES
from trainyard.steps.preprocess.split import assign
from trainyard_control.cli.answers import write_file
from trainyard_control.search import learning_curve
from trainyard_control.search.chart import Mark, chart
from trainyard_control.search.learning_curve import CurvePoint, curve_page


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
                for content, split_number in zip(rows["content"].to_pylist(), rows["split"].to_pylist(), strict=True)
                if split_number == number
            }
            for number, split in enumerate(SPLITS)
        }
    assert used[0.1]["train"] < used[0.4]["train"] < used[1.0]["train"]
    assert len(used[0.4]["train"]) == pytest.approx(0.4 * len(used[1.0]["train"]), rel=0.08)
    for split in ("eval", "test"):
        assert used[0.1][split] == used[0.4][split] == used[1.0][split] != set()


def points(exponent: float, noise: float, classes: dict[str, float] | None = None) -> list[CurvePoint]:
    random = np.random.default_rng(3)
    drawn = []
    for fraction in (0.1, 0.2, 0.4, 0.8, 1.0):
        examples = round(20_000 * fraction)
        error = 2.0 * examples**-exponent * math.exp(noise * random.normal())
        drawn.append(CurvePoint(fraction, examples, error, error * 0.9, error * 1.1, max(noise, 0.01), classes or {}))
    return drawn


def test_a_power_law_is_found_again_with_an_interval_that_holds_it() -> None:
    exact = learning_curve.fit(points(0.35, 0.0))
    assert exact.exponent == pytest.approx(0.35, abs=1e-9) and exact.scale == pytest.approx(2.0)
    assert exact.gain(20_000)[0] == pytest.approx(2.0 * 20_000**-0.35 * (1 - 2**-0.35))
    noisy = learning_curve.fit(points(0.35, 0.05))
    value, low, high = noisy.gain(20_000)
    assert low < 2.0 * 20_000**-0.35 * (1 - 2**-0.35) < high and low < value < high
    assert low > 0 and "may be nothing" not in learning_curve.sentence(points(0.35, 0.05), noisy, is_percentage=True)
    told = learning_curve.sentence(points(0.35, 0.0), exact, is_percentage=True)
    gain = exact.gain(20_000)[0]  # of an error of 6.25 %, so a fifth of it
    assert told.startswith(f"twice the data: {100 * gain:.2g} percentage points less error")
    flat = points(0.0, 0.05)
    assert "the points do not tell" in learning_curve.sentence(flat, learning_curve.fit(flat), is_percentage=False)


@pytest.mark.parametrize("text", ["0.5,1", "a,b,c", "0,0.5,1", "0.5,1,1.5", "1,1,1", "nan,0.5,1"])
def test_a_power_law_of_too_few_or_wrong_shares_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="fractions"):
        learning_curve.fractions(text)


def test_the_page_of_a_curve_is_whole_and_holds_no_script(tmp_path: Path) -> None:
    drawn = points(0.35, 0.05)
    law = learning_curve.fit(drawn)
    write_file(curve_page("<b>", drawn, law, "twice & more", "test error"), tmp_path / "a.html", "--html")
    page = (tmp_path / "a.html").read_text()
    assert page.count("<circle") == 5 and page.count("<polyline") == 1 and page.count("<polygon") == 1
    assert "<script" not in page and "&lt;b&gt;" in page and "twice &amp; more" in page
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_file(curve_page("a", drawn, law, "", "test error"), tmp_path / "nowhere" / "a.html", "--html")


@pytest.mark.parametrize("interval", [{"f1": Interval(low=0.97, high=1.0)}, {}])
def test_a_curve_whose_error_may_be_nothing_is_drawn(tmp_path: Path, interval: dict[str, Interval]) -> None:
    """Of several labels an F1 of 1 is possible, and has no interval if all resamples agree."""
    gate = Verdict(verdict="blessed", thresholds=[])
    parts = {name: [] for name in ("classes", "confusion", "roc", "slices", "worst")}
    drawn = []
    for examples, f1 in ((10, 0.9), (30, 0.95), (100, 1.0)):
        judged = Evaluation(
            split="test", examples=50, metrics={"f1": f1}, intervals=interval, champion=None, gate=gate, **parts
        )
        drawn.append(learning_curve._point(examples / 100, examples, judged))
    assert drawn[-1].low <= drawn[-1].error <= drawn[-1].high
    page = curve_page("tags", drawn, learning_curve.fit(drawn), "", "test error")
    assert page.count("<circle") == 3 and "nan" not in page


def test_a_chart_places_its_marks_within_its_axes() -> None:
    drawn = chart("a", ("x", "y"), [Mark(1, 0.5), Mark(1000, 0.5)], log_x=True)
    assert drawn.x.start < drawn.x.at(1) < drawn.x.at(1000) < drawn.x.end
    assert drawn.x.at(31.6227766) == pytest.approx((drawn.x.at(1) + drawn.x.at(1000)) / 2, abs=0.1)
    assert [name for _, name in drawn.x.ticks] == ["1", "10", "100", "1000"]
    assert drawn.y.low < 0.5 < drawn.y.high  # all values are equal
    large = chart("a", ("x", "y"), [Mark(1, 100_000), Mark(2, 200_000.5)])
    assert max(len(name) for _, name in large.y.ticks) == 6 and drawn.x.start == 62
    assert large.x.start - 6 - 6 * 6.5 >= 24, "the title stands left of six digits, not on them"
    named = chart("a", ("x", "y"), [Mark(0, 1), Mark(1, 2)], categories=("cnn_small", "alexnet"))
    assert [name for _, name in named.x.ticks] == ["cnn_small", "alexnet"]
    crowded = chart("a", ("x", "y"), [Mark(0, 1)], categories=MODEL_FAMILIES["efficient"])
    names = [name for _, name in crowded.x.ticks]
    assert names[-1] == "effic…v2_b3" and len(set(names)) == len(names)
