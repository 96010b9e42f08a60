"""The tutorial on taxi tips, its recipe and its commands, on made trips of the published file's columns and types."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

pytestmark = pytest.mark.usefixtures("warm_processes")

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "taxi.md"
ROWS = 12_000


def trips(month: str, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    start = np.datetime64(month, "us") + np.sort(draw.integers(0, 28 * 86_400, ROWS)).astype("m8[s]")
    start[:: ROWS // 4] = np.datetime64("2002-12-31T23:59:59", "us")  # wrong clocks
    miles = draw.gamma(1.5, 2, ROWS)
    fare = np.round(3 + 2.5 * miles, 2)
    fare[::200] = -fare[::200]  # refunds
    rate = np.where(draw.random(ROWS) < 0.05, 2.0, 1.0)
    dropped = draw.integers(1, 60, ROWS)
    share = draw.normal(0.16 + 0.08 * (rate == 2) + 0.08 * (dropped % 2), 0.05, ROWS)
    missing = draw.random(ROWS) < 0.04
    return pa.table(
        {
            "VendorID": pa.array(draw.integers(1, 3, ROWS), pa.int32()),
            "tpep_pickup_datetime": pa.array(start, pa.timestamp("us")),
            "tpep_dropoff_datetime": pa.array(start + np.timedelta64(900, "s"), pa.timestamp("us")),
            "passenger_count": pa.array(draw.integers(1, 5, ROWS).astype(float), mask=missing),
            "trip_distance": miles,
            "RatecodeID": pa.array(rate, mask=missing),
            "PULocationID": pa.array(draw.integers(1, 60, ROWS), pa.int32()),
            "DOLocationID": pa.array(dropped, pa.int32()),
            "payment_type": draw.choice([1, 2], ROWS, p=[0.8, 0.2]),
            "fare_amount": fare,
            "tip_amount": np.round(np.maximum(0, fare * share), 2),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("taxi")
    for name, month, seed in (("trips", "2024-01-01", 1), ("february", "2024-02-01", 2)):
        (folder / name).mkdir()
        parquet.write_table(
            trips(month, seed), folder / name / f"yellow_tripdata_{month[:7]}.parquet", row_group_size=5000
        )
    (recipe,) = re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    (folder / "taxi.yaml").write_text(recipe)
    return folder


def trainyard(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "trainyard_control.cli.main", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    return [line.split()[1:] for block in blocks for line in block.splitlines()]


def test_the_tutorial_ends_with_answers_for_another_month(folder):
    inspect, validate, run, predict = commands()
    assert "12,000 rows × 11 columns" in trainyard(folder, *inspect)
    assert validate[:2] == ["recipe", "validate"]
    trainyard(folder, *validate)
    record = json.loads(trainyard(folder, *run, "--set", "export.formats=[saved_model]", "-o", "json"))
    table = parquet.read_table(folder / "trips")
    read = [
        row
        for row in table.select(["payment_type", "fare_amount", "tpep_pickup_datetime"]).to_pylist()
        if row["payment_type"] == 1 and row["fare_amount"] > 0 and row["tpep_pickup_datetime"].year == 2024
    ]
    days = [row["tpep_pickup_datetime"].day for row in read]
    assert {split: record["data"][split] for split in ("train", "eval", "test")} == {
        "train": sum(day < 22 for day in days),
        "eval": sum(22 <= day < 27 for day in days),
        "test": sum(day >= 27 for day in days),
    }
    assert record["data"]["quarantined"] == 0
    assert record["metrics"]["roc_auc"] > 0.55, record["metrics"]
    assert [threshold["name"] for threshold in record["gate"]["thresholds"]][:2] == [
        "roc_auc >= 0.55",
        "roc_auc - boosted >= -0.1",
    ]
    assert "Gradient-boosted trees on the same split have roc_auc" in record["remark"]
    assert record["gate"]["verdict"] == "blessed", (record["gate"], record["metrics"])
    trainyard(folder, *predict)
    answers = parquet.read_table(folder / "tips.parquet")
    tipped = answers["prediction"].to_pylist().count("true")
    # Half of them: the month is after all that the model has learned from, and alike.
    assert answers.num_rows == ROWS and 0.25 * ROWS < tipped < 0.75 * ROWS
