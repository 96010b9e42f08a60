"""What a report makes of rounds, of published peaks and of the input alone, and what it refuses to measure."""

from __future__ import annotations

import pytest
from tests.unit.test_pool_benchmark import trained
from typer.testing import CliRunner

from trainyard.contract.artifacts.train import Device, InputSpeed, Training
from trainyard.errors import ConfigurationError
from trainyard_control import api
from trainyard_control.cli.main import app
from trainyard_control.search import bench, bench_report
from trainyard_control.search.bench import Setting, over_rounds, published_tflops
from trainyard_control.search.bench_report import BenchmarkReport, Speed, interval, quotient


def report(rates: dict[str, list[float]], hardware: str = "CPU", **more: object) -> BenchmarkReport:
    """Return what the settings make of the speeds of their rounds."""
    trainings: dict[str, list[Training]] = {
        name: [trained(rate, 1, hardware) for rate in round_rates] for name, round_rates in rates.items()
    }
    base = next(iter(trainings.values()))
    speeds = [over_rounds(Setting(name, {}), 64, runs, base) for name, runs in trainings.items()]
    return bench.report_from_trainings("t", base, "a machine", speeds, {}, **more)  # type: ignore[arg-type]


def test_an_interval_is_that_of_students_t_over_the_logarithms() -> None:
    mean, low, high = interval([100.0, 110.0, 121.0])  # logarithms 0.0953 apart: deviation 0.0953, t 4.303
    assert mean == pytest.approx(110)
    assert high / mean == pytest.approx(mean / low) == pytest.approx(1.1 ** (4.302653 / 3**0.5), rel=1e-6)


def test_a_machine_that_grows_slower_blurs_speeds_and_not_the_comparison_of_settings() -> None:
    measured = report({"as it is": [1000, 800, 500], "batch 128": [1100, 884, 548]})
    base, other = measured.speeds
    assert base.low < 500 and base.high > 1000 and base.rounds == [1000, 800, 500]
    assert other.times == pytest.approx(1.1, abs=0.01) and (other.times_low or 0) > 1.08
    assert "batch 128 is 1.10 times as fast as as it is." in measured.sentences
    assert base.peak_share == round(base.tflops / 0.01, 4)
    assert quotient([2.0, 4.0], [1.0, 2.0]) == (2, 2, 2)


def test_settings_that_change_places_are_called_alike() -> None:
    measured = report({"as it is": [1000, 1000, 1000], "XLA": [1200, 900, 1100]})
    assert "No setting is faster by more than what the rounds differ by." in measured.sentences


def test_a_setting_that_is_far_slower_is_trained_once_and_compared_without_an_interval() -> None:
    slow, base = [trained(290, 1, "CPU")], [trained(1000, 1, "CPU")]
    assert bench._far_slower(slow, base) and not bench._far_slower([trained(310, 1, "CPU")], base)
    assert not bench._far_slower(None, base) and not bench._far_slower(base, base)
    measured = report({"as it is": [1000, 900, 1100], "XLA": [50]})
    assert measured.compared(measured.speeds[1]) == "0.05" and measured.speeds[1].rounds == []
    assert "No setting is faster" in measured.sentences[-1]


def test_one_round_has_the_range_of_its_epochs() -> None:
    (speed,) = report({"as it is": [1000]}).speeds
    assert (speed.low, speed.high, speed.times, speed.rounds) == (1000, 1000, None, [])


def test_a_gpu_is_held_against_its_published_peak_and_a_cpu_is_said_to_have_none() -> None:
    assert (published_tflops("NVIDIA L4", "bfloat16"), published_tflops("NVIDIA L4", "float32")) == (121, 60)
    assert published_tflops("CPU", "float32") is published_tflops("tpu-v3-slice", "float32") is None
    # 1e9 operations a second of two replicas that compute 60e12 each in float32.
    (speed,) = report({"as it is": [1000]}, "NVIDIA L4").speeds
    assert speed.published_share == round(1e9 / 120e12, 4)
    on_cpu = report({"as it is": [1000]})
    assert on_cpu.speeds[0].published_share is None and on_cpu.peaks == ["of measured peak"]
    named = on_cpu.model_copy(update={"devices": [on_cpu.devices[0].model_copy(update={"name": "CPU:0"})]})
    assert "No published peak for this CPU" in named.sentences[1]


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        (50, "The model bounds it: its input alone gives 100 examples/s from JPEG shards, its model takes 50"),
        (
            200,
            "The input bounds it: its input alone gives 100 examples/s from JPEG shards, its model takes 200",
        ),
        (100, "Neither the model nor the input clearly bounds it"),
    ],
)
def test_the_verdict_follows_from_the_source_that_the_recipe_reads(model: float, verdict: str) -> None:
    inputs = [
        InputSpeed(source=source, examples_per_second=rate, low=0.9 * rate, high=1.1 * rate, used=used)
        for source, rate, used in (("JPEG shards", 100, True), ("raw shards", 150, False), ("memory", 500, False))
    ]
    sentence = bench_report.input_sentence(inputs, model, cpu=False)
    assert sentence.startswith(verdict) and ("from memory come 500" in sentence) == (model == 200)
    page = report({"as it is": [1000, 900]}, inputs=inputs).page()
    assert "Input alone" in page and "as this recipe does" in page


def test_the_input_of_several_rounds_has_an_interval_that_covers_them() -> None:
    def speeds(rate: float) -> list[InputSpeed]:
        return [InputSpeed(source="memory", examples_per_second=rate, low=0.99 * rate, high=1.01 * rate, used=True)]

    assert bench.mean_inputs([]) == [] and bench.mean_inputs([speeds(10)]) == speeds(10)
    (speed,) = bench.mean_inputs([speeds(100), speeds(400)])
    assert speed.examples_per_second == 200 and speed.low < 100 and speed.high > 400 and speed.used


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "train.batch_size=10000000"], "train.batch_size 10,000,000 needs at least"),
        (["--rounds", "0"], "rounds 0: not from 1 to 10"),
        (["--rounds", "11"], "rounds 11: not from 1 to 10"),
    ],
)
def test_what_cannot_be_measured_here_is_refused_before_anything_starts(options: list[str], sentence: str) -> None:
    ended = CliRunner().invoke(app, ["bench", "digits", *options], env={"COLUMNS": "400"})
    assert ended.exit_code != 0 and sentence in ended.stderr + str(ended.exception)


def test_a_model_without_a_recipe_has_no_rounds() -> None:
    with pytest.raises(ConfigurationError, match="workers and rounds are for recipes"):
        api.bench("mine.keras", rounds=2)


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
def test_a_report_says_what_is_faster_by_more_than_noise(
    speeds: list[Speed], device: str, sentences: list[str]
) -> None:
    report = BenchmarkReport(
        recipe="a",
        model="mlp",
        parameters=1,
        flops_per_example=1.0,
        machine="",
        cores=2,
        devices=[Device(name=device, product="", memory_bytes=0, tflops=1.0, gb_per_second=1.0)],
        versions={},
        speeds=speeds,
    )
    assert len(report.sentences) == len(sentences)
    assert all(part in sentence for part, sentence in zip(sentences, report.sentences, strict=True))
