"""Beam's engine in an environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_environment import KUBEFLOW, LOCAL, load, refusal


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (f"{LOCAL}", "--runner=DirectRunner"),
        (
            f"{LOCAL}beam: {{runner: FlinkRunner, options: {{parallelism: 4, a: true, b: false, job_name: a b}}}}",
            "--runner=FlinkRunner --parallelism=4 --a '--job_name=a b'",
        ),
        (f"{LOCAL}beam: {{runner: prism}}", "--runner=PrismRunner"),
        (
            f"{LOCAL}beam: {{runner: flink, parallelism: 2, options: {{job_endpoint: localhost:8099}}}}",
            "--runner=FlinkRunner --environment_type=LOOPBACK --parallelism=2 --job_endpoint=localhost:8099",
        ),
        (
            f"{KUBEFLOW}namespace: team\nbeam: {{runner: flink, parallelism: 8}}",
            "--runner=FlinkRunner --job_endpoint=trainyard-flink.team:8099 --environment_cache_millis=20000 "
            "--environment_type=EXTERNAL --environment_config=localhost:50000 --parallelism=8",
        ),
        (
            f"{KUBEFLOW}beam: {{runner: spark, options: {{job_endpoint: jobs:8099, environment_config: pool:1}}}}",
            "--runner=SparkRunner --environment_type=EXTERNAL --environment_config=pool:1 --job_endpoint=jobs:8099",
        ),
        (
            f"{KUBEFLOW}beam: {{runner: dataflow, parallelism: 40, options: {{project: p, region: r, "
            "sdk_container_image: image, machine_type: n2-standard-4}}",
            "--runner=DataflowRunner --temp_location=gs://bucket/runs/.dataflow --sdk_location=container "
            "--max_num_workers=40 --project=p --region=r --sdk_container_image=image --machine_type=n2-standard-4",
        ),
    ],
)
def test_an_engine_and_its_parallelism_become_beams_command_line(document: str, words: str, tmp_path: Path) -> None:
    assert load(tmp_path, document).beam_options == words


@pytest.mark.parametrize(
    ("beam", "sentences"),
    [
        ("{runner: flnk}", ["runner: no runner 'flnk'. Known: direct, prism, flink, spark, dataflow. Did you mean"]),
        ("{parallelism: 2}", ["parallelism: flink and dataflow have one, direct has none. Leave it out"]),
        ("{runner: flink, parallelism: 0}", ["parallelism: "]),
        (
            "{runner: flink, parallelism: 2, options: {parallelism: 3, job_endpoint: a:1}}",
            ["options.parallelism: is what beam.parallelism is. Leave one of them out"],
        ),
        ("{runner: flink}", ["options.job_endpoint: is required for flink here: host:port of a job server of Beam's"]),
        ("{runner: prism, options: {runner: FlinkRunner}}", ["options.runner: stands under beam.runner. Leave it out"]),
        (
            "{runner: dataflow, options: {project: p}}",
            [
                "options.region: is required for dataflow: where the workers run",
                "options.sdk_container_image: is required for dataflow: the image of the workers",
                "runner: dataflow writes to gs:// alone, and storage is 'runs'. Name a bucket of Google's",
            ],
        ),
    ],
)
def test_an_engine_that_cannot_run_is_refused(beam: str, sentences: list[str], tmp_path: Path) -> None:
    lines = refusal(tmp_path, f"{LOCAL}beam: {beam}\n").splitlines()
    assert [
        line.partition(": beam.")[2][: len(sentence)] for line, sentence in zip(lines, sentences, strict=True)
    ] == sentences
