"""The choice of a plan, written into an environment's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_planning import POOLS, load
from typer.testing import CliRunner

from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard_control.api.forecast import set_train_pool, timeout, with_train
from trainyard_control.cli.main import app


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "placement:\n  default: cpu  # all\n  train: l4  # fast\n",
            "placement:\n  default: cpu  # all\n  train: a100  # fast\n",
        ),
        ("placement:\n  default: cpu  # all\n", "placement:\n  train: a100\n  default: cpu  # all\n"),
        (
            "placement: {default: cpu}  # all\nretries: {}\n",
            "placement: {train: a100, default: cpu}  # all\nretries: {}\n",
        ),
        ("placement: {default: cpu, train: 'l4'}\n", "placement: {default: cpu, train: a100}\n"),
        ("placement: {default: cpu, train: [spot, l4]}\n", "placement: {default: cpu, train: a100}\n"),
        (
            "placement:\n  train:\n    - spot\n    - l4\n  default: cpu  # all\nretries: {}\n",
            "placement:\n  train: a100\n  default: cpu  # all\nretries: {}\n",
        ),
        ("target: local  # here\n", "target: local  # here\nplacement:\n  train: a100\n"),
    ],
)
def test_placing_changes_one_line_and_keeps_the_comments(written: str, expected: str) -> None:
    assert with_train(written, "placement", "a100") == expected


def test_the_choice_is_written_into_the_users_environment_but_never_into_a_bundled_one(tmp_path: Path) -> None:
    load(tmp_path)
    file = set_train_pool(str(tmp_path / "own.yaml"), "a100", timeout_seconds=5400)
    read = environments.load(str(file))
    assert read.placement == {"default": "cpu", "train": "a100"}
    assert (read.timeout_of("train"), read.timeout_of("push")) == (5400, 3600)
    assert "# train is placed here too" in file.read_text()
    with pytest.raises(
        ConfigurationError, match=r"comes with Trainyard and is not written\. Copy .*gke.yaml to your own file"
    ):
        set_train_pool("gke", "gpu-l4")


def test_a_placed_training_may_take_twice_its_high_estimate_unless_the_environment_says_how_long(
    tmp_path: Path,
) -> None:
    assert (timeout(0.01), timeout(3.0)) == (3600, 6 * 3600)
    load(tmp_path)
    options = [
        "plan",
        str(tmp_path / "imagenet.yaml"),
        "-e",
        str(tmp_path / "own.yaml"),
        "--examples",
        "1281167",
        "--place",
    ]
    own = POOLS.replace("gs://bucket", str(tmp_path)) + "volume: {claim: runs, path: " + str(tmp_path) + "}\n"
    (tmp_path / "own.yaml").write_text(own)
    first = CliRunner().invoke(app, options)
    placed = environments.load(str(tmp_path / "own.yaml"))
    assert "(2 times the plan's high estimate, an hour at least)" in first.stderr
    assert (
        placed.timeout_seconds["train"] > 3600
        and f"timeout_seconds.train is {placed.timeout_of('train')}" in first.stderr
    )
    (tmp_path / "own.yaml").write_text(own + "timeout_seconds: {default: 60}\n")
    again = CliRunner().invoke(app, options)
    assert "lets it run for 0.0167 h. Raise timeout_seconds.train" in again.stderr
    assert environments.load(str(tmp_path / "own.yaml")).timeout_seconds == {"default": 60}
