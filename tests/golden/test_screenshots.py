"""The terminal images of README and site show what the commands print today; `make screenshots` draws them again."""

from __future__ import annotations

import pytest
import screenshots
from typer.testing import CliRunner

from trainyard_control.cli.main import app


def test_the_table_of_plan_is_the_one_that_plan_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_control.planning.history._read", lambda *_: None)  # the bucket is an example
    printed = CliRunner().invoke(app, screenshots.PLAN.split()[1:], env={"COLUMNS": str(screenshots.COLUMNS)}).stdout
    drawn = screenshots.lines((screenshots.ASSETS / "plan.svg").read_text(encoding="utf-8"))
    table = printed.partition("\n\n")[0].splitlines()
    # The lines before the table are as wide as the terminal, which the runner has not.
    expected, found = screenshots.structure(table), screenshots.structure(drawn)
    assert found[found.index("pool") :] == expected[expected.index("pool") :]
    assert drawn[0] == f"$ {screenshots.PLAN}"


@pytest.mark.parametrize("name", ["run.svg", "plan.svg"])
def test_the_images_load_nothing_from_elsewhere(name: str) -> None:
    image = (screenshots.ASSETS / name).read_text(encoding="utf-8")
    assert "url(http" not in image and "<image" not in image and "<script" not in image
