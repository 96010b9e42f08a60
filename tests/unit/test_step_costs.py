"""What a step takes and needs on hardware, by the roofline."""

from __future__ import annotations

import pytest
from tests.unit.test_planning import RESNET

from trainyard_control.planning import cost
from trainyard_control.planning.hardware import (
    ExampleCost,
    Hardware,
    accelerator_hardware,
    communication_seconds,
    cpu_hardware,
    needed_bytes,
    step_seconds,
)


def test_accelerators_add_computing_and_moving_and_cpus_take_the_slower() -> None:
    work = ExampleCost(
        parameters=0, flops_per_example=1e9, activations_per_example=1e6, saved_activations_per_example=1e6
    )
    gpu = Hardware("nvidia-l4", 1, 1, 4, flops=1e12, memory_bandwidth=1e10)
    assert step_seconds(work, 8, gpu) == pytest.approx(0.003 + (8e-3 + 8 * 5 * 4e6 / 1e10) / 0.77)
    cpu = Hardware("CPU", 1, 1, 4, flops=1e12, memory_bandwidth=1e10)
    assert step_seconds(work, 8, cpu) == pytest.approx(0.0006 + 8 * 5 * 4e6 / 1e10 / 0.6)


@pytest.mark.parametrize(
    ("name", "chips", "batch"),
    [("tpu-v4-podslice", 8, 2048), ("tpu-v4-podslice", 64, 8192), ("tpu-v3-slice", 16, 4096), ("tpu-v2", 4, 1024)],
)
def test_the_batches_that_google_trained_resnet50_with_fit_into_its_tpus(name: str, chips: int, batch: int) -> None:
    hardware = accelerator_hardware("auto", name, 4, chips // 4, 96, None)
    assert needed_bytes(RESNET, batch, hardware) < (hardware.memory_bytes or 0)


def test_a_tpu_holds_activations_in_bfloat16_unless_the_recipe_says_float32() -> None:
    mixed, full = (
        accelerator_hardware(precision, "tpu-v5-lite-podslice", 8, 1, 100, None) for precision in ("auto", "float32")
    )
    assert (mixed.bytes_per_number, full.bytes_per_number) == (2, 4)
    assert needed_bytes(RESNET, 1024, mixed) < (mixed.memory_bytes or 0), "a v5e-8 holds ResNet-50 at batch 1024"


# Source: NVIDIA DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5: "suggested batch sizes … 256 for
# mixed precision training and 128 for single precision training per single V100 16 GB".
@pytest.mark.parametrize(("precision", "batch"), [("auto", 256), ("float32", 128)])
def test_the_batches_that_nvidia_publishes_for_a_v100_of_16_gb_fit_and_the_next_do_not(
    precision: str, batch: int
) -> None:
    hardware = accelerator_hardware(precision, "nvidia-tesla-v100", 1, 1, 8, None)
    assert (
        needed_bytes(RESNET, batch, hardware) < (hardware.memory_bytes or 0) < needed_bytes(RESNET, 2 * batch, hardware)
    )


def test_a_ring_sends_twice_all_but_one_share_of_the_gradients() -> None:
    work = ExampleCost(
        parameters=1_000_000, flops_per_example=1, activations_per_example=1, saved_activations_per_example=1
    )
    four = cpu_hardware(1, 4, network=1e9)
    assert communication_seconds(work, four) == pytest.approx(2 * 3 / 4 * 4e6 / (1e9 * 0.5))
    assert communication_seconds(work, cpu_hardware(1, 1, None)) == 0
    # The chips of a slice reach each other by their own links, whichever host they are on.
    pod = accelerator_hardware("auto", "tpu-v5-lite-podslice", 4, 4, 100, None)
    assert communication_seconds(work, pod) == pytest.approx(2 * 15 / 16 * 4e6 / 200e9)


def test_a_batch_that_does_not_fit_needs_more_memory_than_the_device_has() -> None:
    l4 = accelerator_hardware("auto", "nvidia-l4", 1, 1, 8, None)
    assert l4.memory_bytes is not None
    assert needed_bytes(RESNET, 128, l4) < l4.memory_bytes < needed_bytes(RESNET, 1024, l4)
    assert needed_bytes(RESNET, 1024, l4, slices=8) < l4.memory_bytes


@pytest.mark.parametrize(("side", "low", "high"), [(96, 96, 96), (112, 96, 128), (512, 384, 10_000)])
def test_the_cost_between_measured_sizes_lies_between_theirs(side: int, low: int, high: int) -> None:
    flops = cost.named("resnet50", (side, side, 3), 10).flops_per_example
    below, above = (cost.named("resnet50", (size, size, 3), 10).flops_per_example for size in (low, high))
    assert below <= flops <= above
    assert flops == pytest.approx(
        cost.named("resnet50", (224, 224, 3), 10).flops_per_example * side**2 / 224**2, rel=0.1
    )


def test_more_classes_cost_a_wider_last_layer() -> None:
    ten, thousand = (cost.named("resnet50", (224, 224, 3), classes) for classes in (10, 1000))
    assert thousand.parameters - ten.parameters == 990 * 2048 + 990 - 990
    assert RESNET.flops_per_example == thousand.flops_per_example
