"""How a learning curve is measured, fitted and drawn, without a training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from split_rows import split_rows
from tests import small_documents
from tests.unit import report_folders

from trainyard.contract.artifacts.gate import Interval, Verdict
from trainyard.contract.document import SPLITS
from trainyard.errors import ConfigurationError
from trainyard.report import plots
from trainyard.report.plots import Mark, chart
from trainyard.spec import recipe as recipes
from trainyard_control.cli.options import write_file
from trainyard_control.search import learning_curve
from trainyard_control.search.learning_curve import CurvePoint, curve_page


def test_a_share_of_the_data_is_within_a_larger_one_and_leaves_the_other_splits_whole(tmp_path: Path) -> None:
    count = 4000
    contents = [number.to_bytes(32, "little") for number in range(count)]
    batch = pa.record_batch(
        {"content": contents, "source": ["a"] * count, "label": ["b"] * count},
        schema=pa.schema({"content": pa.binary(32), "source": pa.string(), "label": pa.string()}),
    )
    used = {}
    for fraction in (0.1, 0.4, 1.0):
        rows = split_rows([batch], recipes.load("digits", [f"data.fraction={fraction}"]), tmp_path)
        used[fraction] = {
            split: {
                content
                for content, split_number in zip(rows["content"].to_pylist(), rows["split"].to_pylist(), strict=True)
                if split_number == number
            }
            for number, split in enumerate(SPLITS)
        }
    assert used[0.1]["train"] < used[0.4]["train"] < used[1.0]["train"]
    assert len(used[0.4]["train"]) == pytest.approx(0.4 * len(used[1.0]["train"]), rel=0.1)
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


def test_the_page_of_a_curve_is_whole_and_runs_only_our_scripts(tmp_path: Path) -> None:
    drawn = points(0.35, 0.05)
    law = learning_curve.fit(drawn)
    write_file(curve_page("<b>", drawn, law, "twice & more", "test error"), tmp_path / "a.html", "--html")
    page = (tmp_path / "a.html").read_text()
    band, line, marks = report_folders.figures(page)["Error and examples"]["data"]
    assert band["fill"] == "toself" and len(line["x"]) == 41 and len(marks["x"]) == 5
    assert page.count("<script") == 3 and "<b>" not in page and "&lt;b&gt;" in page and "twice &amp; more" in page
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_file(curve_page("a", drawn, law, "", "test error"), tmp_path / "nowhere" / "a.html", "--html")


@pytest.mark.parametrize("interval", [{"f1": Interval(low=0.97, high=1.0)}, {}])
def test_a_curve_whose_error_may_be_nothing_is_drawn(tmp_path: Path, interval: dict[str, Interval]) -> None:
    """Of several labels an F1 of 1 is possible, and has no interval if all resamples agree."""
    gate = Verdict(verdict="blessed", thresholds=[])
    drawn = []
    for examples, f1 in ((10, 0.9), (30, 0.95), (100, 1.0)):
        judged = small_documents.evaluation(examples=50, metrics={"f1": f1}, intervals=interval, gate=gate)
        drawn.append(learning_curve._point(examples / 100, examples, judged))
    assert drawn[-1].low <= drawn[-1].error <= drawn[-1].high
    page = curve_page("tags", drawn, learning_curve.fit(drawn), "", "test error")
    marks = report_folders.figures(page)["Error and examples"]["data"][-1]
    assert len(marks["x"]) == 3 and "NaN" not in str(marks)


def test_a_chart_has_intervals_names_and_logarithmic_axes() -> None:
    drawn = chart(("x", "<y>"), [Mark(1, 0.5, "<b>", True, 0.4, 0.7), Mark(1000, 0.5)], log_x=True)
    (marks,) = drawn["data"]
    assert marks["hovertext"] == ["&lt;b&gt;", ""] and marks["marker"]["color"] == ["@second", "@accent"]
    assert marks["error_y"]["array"] == pytest.approx([0.2, 0]) and marks["error_y"]["arrayminus"] == pytest.approx(
        [0.1, 0]
    )
    assert drawn["layout"]["xaxis"]["type"] == "log" and drawn["layout"]["yaxis"]["title"]["text"] == "&lt;y&gt;"
    named = chart(
        ("x", "y"), [Mark(0, 1), Mark(1, 2)], {"both": [(-0.5, 1), (1.5, 1)]}, categories=("a", "<b>"), bars=True
    )
    assert [trace["type"] for trace in named["data"]] == ["scatter", "bar"]
    assert named["layout"]["xaxis"]["ticktext"] == ["a", "&lt;b&gt;"] and named["layout"]["xaxis"]["range"] == [
        -0.5,
        1.5,
    ]


def test_a_page_without_plotly_keeps_its_tables_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    shown = plots.page("a", [], {"b": chart(("x", "y"), [Mark(1, 2)])}, [(["head"], [["cell"]])])
    assert (
        "plotly is not installed here" in shown and "cell" in shown and "<script" not in shown and len(shown) < 20_000
    )
