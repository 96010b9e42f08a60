"""A column that decides the class is learned nearly without error, whatever it holds."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest
from preprocess_sources import preprocess

from trainyard.data.examples import open_examples
from trainyard.spec.recipe import Recipe
from trainyard.steps.evaluate.baselines import boosted_predictions

ROWS = 3000
SIGNALS = {
    "number": {"type": "numeric"},
    "gaps": {"type": "numeric"},
    "days": {"type": "date", "missing": ["9999-12-31"]},
    "kind": {"type": "category"},
    "words": {"type": "text"},
}
TEXTS = [("written in C++", "written in C#"), ("as ordered 🙂", "as ordered 🙁"), ("well done :)", "well done :(")]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return the share of right answers on the test split, by the column that decides the class of the same name."""
    folder, draw = tmp_path_factory.mktemp("signals"), np.random.default_rng(5)
    lines = ["y," + ",".join(SIGNALS)]
    for _ in range(ROWS):
        truths = draw.random(len(SIGNALS)) < 0.5
        number, gaps, days, kind, words = truths
        day = date(2024, 1, 1) + timedelta(int(draw.integers(0, 150)) + 200 * int(days))
        cells = [
            ";".join(name for name, truth in zip(SIGNALS, truths, strict=True) if truth),
            f"{draw.exponential() * (1 if number else -1):.6f}",
            "" if gaps else f"{draw.normal():.6f}",
            "9999-12-31" if not days and draw.random() < 0.3 else day.isoformat(),
            f"{'warm' if kind else 'cold'}-{draw.integers(10)}",
            TEXTS[draw.integers(len(TEXTS))][int(words)],
        ]
        lines.append(",".join(cells))
    (folder / "signals.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = Recipe.model_validate(
        {
            "name": "signals",
            "task": "multi_label",
            "data": {
                "format": "csv",
                "path": str(folder / "signals.csv"),
                "label": "y",
                "label_separator": ";",
                "features": SIGNALS,
            },
            "model": {"name": "mlp"},
        }
    )
    examples = open_examples(preprocess(recipe, folder / "examples"))
    answered = boosted_predictions(examples, "test", 1)
    assert answered is not None and examples.document.labels is not None
    right = ((answered[0].outputs > 0.5) == answered[0].labels).mean(axis=0)
    return dict(zip(examples.document.labels, right.tolist(), strict=True))


@pytest.mark.parametrize("name", SIGNALS)
def test_a_perfect_signal_is_found(learned: dict[str, float], name: str) -> None:
    assert learned[name] >= 0.99
