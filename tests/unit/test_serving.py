"""`trainyard plan --serve`: replicas from the latency that export measured, their price, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainyard.contract.artifacts.export import ExportedFile, Exports, Latency
from trainyard.contract.artifacts.gate import Verdict
from trainyard.errors import ConfigurationError, TransientError
from trainyard.spec import environment as environments
from trainyard.spec import recipe as recipes
from trainyard_control.cli import main
from trainyard_control.cli.main import app
from trainyard_control.planning import serving
from trainyard_control.planning.serving import Demand, Service, response_p95

ROOM = "resources: {requests: {cpu: 2, memory: 4Gi}, limits: {memory: 4Gi}}"
ENVIRONMENT = f"""
target: kubeflow
platform: gke
storage: ROOT
volume: {{claim: runs, path: ROOT}}
images: {{cpu: "example/cpu:1", gpu: "example/gpu:1"}}
pools:
  large: {{kind: cpu, machine: n2-standard-8, {ROOM}}}
  small: {{kind: cpu, machine: e2-standard-4, {ROOM}}}
  few: {{kind: cpu, machine: e2-standard-4, nodes: 1, {ROOM}}}
  inf2: {{kind: npu, accelerator: inferentia2, count: 1, {ROOM}}}
  l4: {{kind: gpu, accelerator: nvidia-l4, count: 2, trains: false, price_per_hour: 0.1, {ROOM}}}
placement: {{default: small}}
"""


def export(name: str, p50: float, p95: float) -> ExportedFile:
    return ExportedFile(
        format=name,
        path=name,
        bytes=1,
        accuracy=1.0,
        accuracy_difference=0.0,
        max_abs_difference=0.0,
        latency_ms=Latency(p50=p50, p95=p95),
    )


FILES = [export("saved_model", 12.0, 18.0), export("litert_int8", 4.0, 6.0)]


def environment(tmp_path: Path) -> Path:
    file = tmp_path / "own.yaml"
    file.write_text(ENVIRONMENT.replace("ROOT", str(tmp_path / "runs")))
    return file


def test_replicas_and_nodes_follow_from_the_fastest_file_and_the_cheapest_pool_is_chosen(tmp_path: Path) -> None:
    loaded = environments.load(str(environment(tmp_path)))
    rows = {row.pool: row for row in serving.plan(loaded, FILES, Demand(qps=2000, p95=0.02))}
    small = rows["small"]
    assert (small.format, small.servers, small.replicas) == ("litert_int8", 2, 6)
    service = Service(0.004, 0.006)
    assert response_p95(2000 / 6, 2, service) <= 0.02 < response_p95(2000 / 5, 2, service)
    # An e2-standard-4 has 3.92 cores for pods, so one of 2; an n2-standard-8 has 7.91, so three.
    assert (small.nodes, rows["large"].nodes) == (6, 2)
    assert (small.usd_per_hour, rows["large"].usd_per_hour) == (pytest.approx(6 * 0.134), pytest.approx(2 * 0.3885))
    assert [row.pool for row in rows.values() if row.chosen] == ["large"]
    assert rows["few"].why == "takes 6 nodes, and the pool has 1" and not rows["few"].feasible
    assert rows["inf2"].why.startswith("no latency is measured on inferentia2")


def test_a_p95_below_the_service_time_is_refused_with_the_fastest_file(tmp_path: Path) -> None:
    loaded = environments.load(str(environment(tmp_path)))
    with pytest.raises(ConfigurationError, match=r"p95=6ms lies under the service time: .* litert_int8, takes 6 ms"):
        serving.plan(loaded, FILES, Demand(qps=1, p95=0.006))


@pytest.mark.parametrize("text", ["200", "qps=0,p95=50ms", "qps=200,p95=50", "p95=50ms,qps=2", "qps=nan,p95=1s", ""])
def test_a_load_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--serve .*Write it such as qps=200,p95=50ms"):
        serving.demand(text)


def test_the_command_reads_the_last_measurement_and_refuses_to_invent_one(tmp_path: Path) -> None:
    command = ["plan", "digits", "-e", str(environment(tmp_path)), "--serve", "qps=100,p95=30ms", "-o", "json"]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, ConfigurationError)
    assert "no latency of digits is measured" in str(refused.exception)
    folder = tmp_path / "runs" / "digits" / "export" / "key"
    folder.mkdir(parents=True)
    Exports(exports=FILES, gate=Verdict(verdict="blessed", thresholds=[])).write(folder)
    rows = json.loads(CliRunner().invoke(app, command).stdout)
    assert [row["pool"] for row in rows] == ["large", "small", "few", "inf2", "l4"]
    assert [row["pool"] for row in rows if row["chosen"]] == ["small"]
    both = CliRunner().invoke(app, [*command, "--deadline", "4h"])
    assert "Leave --deadline" in str(both.exception)


def test_an_accelerator_without_a_measurement_says_what_to_run_there_and_one_with_it_is_sized(tmp_path: Path) -> None:
    loaded = environments.load(str(environment(tmp_path)))
    recipe, wanted = recipes.load("digits"), Demand(qps=2000, p95=0.02)
    folder = serving.answers_folder(recipe, loaded.storage)
    nothing = {row.pool: row for row in serving.plan(loaded, FILES, wanted, {}, folder)}
    assert "run `trainyard bench mine.keras -o json` there" in nothing["l4"].why and folder in nothing["l4"].why
    assert "compile the SavedModel with AWS Neuron" in nothing["inf2"].why and nothing["inf2"].replicas is None
    Path(folder).mkdir(parents=True)
    answer = {"accelerator": "nvidia-l4", "p50": 1.0, "p95": 1.5}
    Path(folder, "l4.json").write_text(json.dumps({"answers": [answer], "machine": "what else a benchmark report has"}))
    measured = serving.answers(recipe, loaded.storage)
    rows = {row.pool: row for row in serving.plan(loaded, FILES, wanted, measured, folder)}
    l4 = rows["l4"]
    # Two accelerators of 1 ms answer 2,000 a second at most, so one replica does not do and two are half busy.
    assert (l4.format, l4.servers, l4.replicas, l4.nodes, l4.usd_per_hour) == ("on nvidia-l4", 2, 2, 2, 0.2)
    assert l4.chosen and 0.4 < (l4.utilisation or 0) < 0.6
    late = serving.plan(loaded, FILES, Demand(qps=1, p95=0.0012), {"nvidia-l4": Latency(p50=1.0, p95=1.1)}, folder)
    assert {row.pool: row.why for row in late}["small"] == "one answer takes longer than that there, without any wait"


def test_a_measurement_that_cannot_be_read_is_refused_by_its_file(tmp_path: Path) -> None:
    loaded, recipe = environments.load(str(environment(tmp_path))), recipes.load("digits")
    folder = Path(serving.answers_folder(recipe, loaded.storage))
    folder.mkdir(parents=True)
    for text in ("no JSON", "[]", '{"answers": [{"accelerator": "edge-tpu", "p50": "fast"}]}'):
        (folder / "edge.json").write_text(text)
        with pytest.raises(ConfigurationError, match=r"--serve: .*edge.json: holds no latency. It is JSON such as"):
            serving.answers(recipe, loaded.storage)


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "digits", "--serve", "qps=1,p95=50ms"],
        ["publish", "mlflow", "digits", "--dry-run"],
        ["predict", "digits", "x.csv"],
        ["evaluate", "digits", "x.csv"],
        ["serve", "digits"],
    ],
    ids=lambda command: command[0],
)
def test_a_bucket_that_does_not_answer_is_given_up_within_a_persons_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(main, "_PATIENCE_SECONDS", 0.5)
    (tmp_path / "bucket.yaml").write_text("target: local\nstorage: s3://away/runs\n")
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a\n1\n")
    ended = CliRunner().invoke(app, [*command, "-e", "bucket.yaml"])
    assert isinstance(ended.exception, TransientError)
    said = re.search(r"^s3://away/runs.*: cannot be reached for (\d+) s", str(ended.exception))
    assert said and int(said[1]) < 60  # 300 without the command's own patience
