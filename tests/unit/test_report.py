"""The report: what it shows of a whole, a partial and a failed run, and that nothing in the data becomes markup."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_folders import SECONDS, evaluation, measured, recipe, whole_run

from trainyard.contract.artifacts.evaluate import Evaluation, Importance
from trainyard.contract.artifacts.gate import Override, Threshold, Verdict
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import Prediction, Training
from trainyard.contract.statistics.drift import (
    Distance,
    FeatureStatistics,
    Histogram,
    Movement,
    Statistics,
    TopValue,
    UnknownValues,
)
from trainyard.escape import one_line
from trainyard.report.outputs import read
from trainyard.report.report import BARS, Ending, _quarantined, render, summaries
from trainyard.report.summary import summarize
from trainyard.spec.recipe import DeviceLimits

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    '<a href="javascript:alert(1)">x</a>',
    "\u2028\u2029\\u003cscript>",
    "@accent",
]


class Page(HTMLParser):
    """Collects the elements, their attributes and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.text, self._script = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._script = [] if tag == "script" else None

    def handle_endtag(self, tag):
        if tag == "script":
            self.scripts.append("".join(self._script))
            self._script = None

    def handle_data(self, data):
        (self.text if self._script is None else self._script).append(data)


def rendered(folders, **more):
    return Page(render("digits", recipe(), read(folders), SECONDS, **more))


def figures(page):
    return json.loads(page.scripts[0])


def test_what_the_answers_rest_on_stands_beside_how_far_it_moved(tmp_path):
    folders = whole_run(tmp_path)
    judged = Evaluation.read(folders["evaluate"]).model_copy(
        update={"importance": [Importance(column=name, loss_increase=0.5, spread=0.1) for name in ("age", "fare")]}
    )
    judged.write(Path(folders["evaluate"]))
    assert "Moved" not in "".join(rendered(folders).text)
    distance = Distance(l_infinity=0.2, jensen_shannon=0.123, psi=0.3)
    moved = Movement(feature="fare", distance=distance, shift=None, missing=None, sentences=["it left"])
    judged.model_copy(update={"drift": [moved]}).write(Path(folders["evaluate"]))
    text = "".join(rendered(folders).text)
    rest = text[text.index("What the answers rest on") :]
    assert rest.index("–") < rest.index("fare") < rest.index("0.12"), "nothing is known of age"


def test_a_table_s_columns_are_shown_with_what_they_lack_and_hold(tmp_path):
    folders = whole_run(tmp_path)
    numbers = Histogram(exponent=0, starts=[0.0, 1.0, 3.0], counts=[2, 4, 1])
    wide = Histogram(exponent=-10, starts=[0.0, 1.0, 500.0], counts=[1, 1, 1])
    top = [
        TopValue(value=value, count=count) for value, count in (("<b>", 60), ("a", 10), ("b", 5), ("c", 3), ("d", 2))
    ]
    columns = {
        "km": FeatureStatistics(count=7, missing=1, mean=1.5, std=0.5, min=0.0, max=3.75, histogram=numbers),
        "few": FeatureStatistics(count=3, missing=0, mean=9.0, std=1.0, min=0.0, max=500.0, histogram=wide),
        "town": FeatureStatistics(count=80, missing=20, distinct=7, top=top),
    }
    Statistics(
        examples={"train": 8},
        classes={},
        features={name: {"train": feature_statistics} for name, feature_statistics in columns.items()},
    ).write(Path(folders["preprocess"]))
    km, few, town = summaries(folders["preprocess"])
    assert (km.missing, km.bars) == (1 / 8, [0.5, 1, 0, 0.25])
    assert len(few.bars) == BARS and sum(few.bars) == 1.5, "two values share the first of the bars"
    assert town.top == [("<b>", 0.6), ("a", 0.1), ("b", 0.05), ("c", 0.03)] and town.bars == []
    outputs = read(folders)
    unknown = {"<b>town": UnknownValues(values=80, unknown=9, missing=20, missing_is_unknown=True)}
    table = replace(
        outputs,
        examples=outputs.examples.model_copy(update={"image": None, "quarantine": {"missing_label": 3}}),
        evaluation=outputs.evaluation.model_copy(update={"unknown": unknown}),
    )
    page = Page(render("r", recipe(), table, SECONDS))
    text = " ".join(page.text)
    assert "9 of 80 values of '<b>town' are unknown to the model." in text
    assert "20 of 100 cells of '<b>town' are missing, and none was in training." in text
    assert "3 missing, 0 unknown; such records are set aside" in " ".join(text.split())
    assert "Columns of the training split" in text and "12.5 %" in text and "and 3 more" in text and "<b>" in text
    assert summaries(None) == []


def test_a_quarantined_cell_is_quoted_only_if_two_rows_have_it(tmp_path):
    folders = whole_run(tmp_path)
    cells = {1: "Jane Doe, Oslo", 2: "unknown", 3: "unknown"}
    records = [{"source": f"a.csv:{row}", "reason": "mistyped_value", "detail": cell} for row, cell in cells.items()]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    Path(folders["preprocess"], "quarantine.jsonl").write_text(lines, encoding="utf-8")
    shown = [record["detail"] for record in _quarantined(folders, samples=False)]
    assert shown == ["see quarantine.jsonl", "unknown", "unknown"]
    assert [record["detail"] for record in _quarantined(folders, samples=True)] == [*cells.values()]


def test_a_whole_run_is_shown_with_all_its_parts(tmp_path):
    page = rendered(whole_run(tmp_path))
    text = " ".join(page.text)
    for part in ("Gate", "Data", "Training", "Evaluation on 10 examples", "Worst examples", "Slices", "Exports", "Run"):
        assert part in text
    assert "✓ Blessed" in text
    assert "Of its 12 ms 9 are compute, 3 are waiting for input" in re.sub(r"\s+", " ", text)
    assert "step 20" in text  # resumed
    assert "18.2 kB" in text and "version 3" in text
    assert "server (trainyard serve) ✓ yes 10 2e-07 1e-05 2e-07 litert_int8 after preprocess.py" in re.sub(
        r"\s+", " ", text
    )
    assert "6 of its 8 operations and 75.0 % of its 4,000 multiply-adds" in " ".join(text.split())
    drawn = {attributes["data-figure"] for _tag, attributes in page.elements if "data-figure" in attributes}
    assert drawn == set(figures(page))


def test_times_on_devices_are_measured_or_said_to_be_estimated(tmp_path):
    outputs = read(whole_run(tmp_path))
    text = " ".join(" ".join(Page(render("r", recipe(), outputs, SECONDS)).text).split())
    assert "exported it, AMD EPYC, x86_64. On a device it is only estimated, from these times: no device" in text
    limited = recipe()
    limited = limited.model_copy(
        update={"export": limited.export.model_copy(update={"devices": {"pi": DeviceLimits()}})}
    )
    text = " ".join(" ".join(Page(render("r", limited, outputs, SECONDS)).text).split())
    assert "estimated, from these times: pi did not measure, because the model was refused before." in text
    outputs = replace(outputs, exports=measured(outputs.exports))
    text = " ".join(" ".join(Page(render("r", recipe(), outputs, SECONDS)).text).split())
    assert "Measured on pi (Raspberry Pi 4 (Cortex-A72), aarch64): litert_int8 answers in 20 ms (p95 30 ms)" in text
    assert "and 8 ms (p95 9.5 ms) with 4 threads; peak memory 80 MB." in text and "estimated" not in text


def test_nothing_outside_the_file_is_named(tmp_path):
    page = rendered(whole_run(tmp_path))
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
    assert "http" not in page.scripts[0] and "http" not in page.scripts[2]


def test_the_policy_lets_only_our_own_scripts_run_and_forbids_every_request(tmp_path):
    page = rendered(whole_run(tmp_path))
    (policy,) = [attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes]
    assert "default-src 'none'" in policy
    (scripts,) = re.findall("script-src (.*)$", policy)
    assert re.fullmatch(r"('sha256-[\w+/=]+' ?){2}", scripts)


def test_a_training_tells_what_a_step_and_the_whole_went_into_and_what_it_survived(tmp_path):
    text = " ".join(" ".join(rendered(whole_run(tmp_path)).text).split())
    assert "Of its 12 ms 9 are compute, 3 are waiting for input. Saving the state adds 0.0200 ms a step." in text
    assert "2 input workers, each with the cores of one that prepares its batches now, would feed it" in text
    assert "50 % of the wall time, restarts included, went into steps that count." in text
    assert "Time: step 4.0 s Time: restart 4.0 s" in text
    assert "From step Seconds after the start Workers 0 2.5 4 of 4 15 9.0 2 of 4" in text
    assert "seven: went on from step 15, 5 steps done again, 4.5 s lost" in text
    assert "training loss was not finite at step 12: went back to step 10 with 0.1000 times the learning rate" in text


def test_what_was_predicted_stands_beside_what_came(tmp_path):
    folders = whole_run(tmp_path)
    ending = Ending(predicted=Prediction(low=80, expected=100, high=125))
    assert "predicted 100 examples/s (80 – 125), measured" in "".join(rendered(folders, ending=ending).text)
    assert "predicted 100" not in "".join(rendered(folders).text)


def test_a_best_epoch_whose_checkpoint_was_lost_is_told(tmp_path):
    folders = whole_run(tmp_path)
    assert "was lost" not in rendered(folders).text
    training = Training.read(folders["train"])
    best = min(training.history, key=lambda epoch: epoch.eval_loss).epoch
    training.model_copy(update={"best_epoch": best + 1}).write(Path(folders["train"]))
    text = " ".join(" ".join(rendered(folders).text).split())
    assert f"The checkpoint of epoch {best}, the best one, was lost: the model is that of epoch {best + 1}." in text


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_the_data_stay_text(tmp_path, text):
    plain = render("digits", recipe(), read(whole_run(tmp_path / "plain")), SECONDS)
    hostile = render(text, recipe(text), read(whole_run(tmp_path / "hostile", text)), SECONDS, Ending(failure=text))
    expected, page = Page(plain), Page(hostile)
    added = [tag for tag, _attributes in page.elements]
    for tag, _attributes in expected.elements:
        added.remove(tag)
    assert sorted(added) == ["div", "strong"]  # the failure's own box
    assert len(page.scripts) == 3
    assert page.scripts[1:] == expected.scripts[1:]
    assert not [name for _tag, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<" not in page.scripts[0]
    shown = figures(page)["confusion"]["data"][0]["x"][0]
    assert shown == one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.parametrize("last", [None, "preprocess", "train", "evaluate", "export"])
def test_a_run_that_ended_early_shows_what_there_is(tmp_path, last):
    folders = whole_run(tmp_path)
    steps = list(folders)[: list(folders).index(last) + 1 if last else 0]
    page = rendered({step: folders[step] for step in steps}, ending=Ending(failure="train: loss is NaN at step 12."))
    text = " ".join(page.text)
    assert "✗ Failed" in text and "loss is NaN at step 12" in text
    assert ("Splits" in text) == ("preprocess" in steps)
    assert ("Loss" in text) == ("train" in steps)
    assert ("Confusion" in text) == ("evaluate" in steps)
    assert ("litert_int8" in text) == ("export" in steps)


def test_a_scheduled_run_that_had_nothing_to_train_says_why_in_a_small_page():
    page = render(
        "digits", recipe(), read({}), {}, Ending(not_due="version 1 stands: no condition of the schedule holds")
    )
    text = " ".join(Page(page).text)
    assert "Nothing to train" in text and "version 1 stands: no condition of the schedule holds" in text
    assert "Failed" not in text and "Not judged" not in text
    assert len(page) < 100_000  # without figures it needs nothing to draw them with


def test_a_run_without_a_step_is_not_judged():
    assert "Not judged" in " ".join(Page(render("digits", recipe(), read({}), {})).text)


def test_a_refused_model_is_told_with_the_condition_that_failed(tmp_path):
    folders = whole_run(tmp_path)
    failed = Threshold(name="accuracy >= 0.99", value=None, bound=0.99, interval=None, passed=False, note="not there.")
    refused = evaluation("seven").model_copy(update={"gate": Verdict(verdict="refused", thresholds=[failed])})
    refused.write(tmp_path / "evaluate")
    override = Override(name="<ann>", time="2026-05-01T08:00:00+00:00", reason="known labels")
    Pushed(path="models", version=4, digest="d" * 64, already=False, override=override).write(tmp_path / "push")
    text = " ".join(rendered(folders).text)
    assert "✗ Refused" in text and "accuracy >= 0.99" in text and "not there." in text
    by = "although a gate refused it, by <ann> at 2026-05-01T08:00:00+00:00: known labels"
    assert by in re.sub(r"\s+", " ", text)
    assert summarize(recipe(), "r", read(folders), SECONDS, None, None)["pushed"]["override"] == override.model_dump()


def test_the_same_run_gives_the_same_bytes(tmp_path):
    folders = whole_run(tmp_path)
    assert render("digits", recipe(), read(folders), SECONDS) == render("digits", recipe(), read(folders), SECONDS)


def test_the_report_stays_below_three_megabytes(tmp_path):
    """plotly alone is 5 MB as text."""
    assert len(render("digits", recipe(), read(whole_run(tmp_path)), SECONDS)) < 3_000_000


def test_a_thousand_classes_keep_the_report_small(tmp_path):
    folders = whole_run(tmp_path)
    judged = evaluation("seven")
    classes = [judged.classes[0].model_copy(update={"label": f"class {number}"}) for number in range(1000)]
    confusion = [[9 if row == column else int(column == 5) for column in range(1000)] for row in range(1000)]
    judged.model_copy(update={"classes": classes, "confusion": confusion}).write(tmp_path / "evaluate")
    text = render("digits", recipe(), read(folders), SECONDS)
    assert "confusion" not in figures(Page(text))
    assert "All 1000 classes" in text and "Most frequent mistakes" in text
    assert len(text) < 3_000_000


def test_plotly_is_not_imported_before_a_report_is_rendered():
    import subprocess
    import sys

    code = "import trainyard.report.report, sys; print([m for m in ('plotly', 'jinja2', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
