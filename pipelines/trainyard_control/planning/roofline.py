"""The time of a training step: what the hardware needs at its peak, divided by its utilization.

Layers run one after another, and most are bound either by computing (products) or by moving memory (all others), so an
accelerator's times for both add up. On a CPU the slower of the two counts, because its caches hold what one layer hands
to the next. Then replicas sum their gradients in a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainyard_control.planning.hardware import Hardware

# Times that an activation crosses the memory in a step: written and read going forward, read going backward, and its
# gradient written and read.
ACTIVATION_PASSES = 5
FORWARD_PASSES = 2  # the first two of them, if neither the layer nor those before it learn
# Times that a weight (float32) does: read twice, its gradient written and read, two moments of the optimizer read and
# written. One that does not learn is read once.
WEIGHT_PASSES = 8
# Utilization of published runs: the geometric mean over the twelve runs of ResNet-50 on V100 and
# A100 that docs/experiments/published.md marks as tuned on. It was fitted to no other.
DEVICE_UTILISATION = 0.77
# Measured here: mobilenet_v3_small and cnn_small on two cores, see docs/benchmarks.md.
CPU_UTILISATION = 0.6
# Constant overhead of a step in seconds. CPU: measured here on the smallest network; others: chosen, without a device.
CPU_OVERHEAD = 0.0006
DEVICE_OVERHEAD = 0.003
# Chosen: share of the network's bandwidth that a ring of gradients gets.
NETWORK_SHARE = 0.5


@dataclass(frozen=True)
class ExampleCost:
    """The cost of an example in a network; operations are those of a whole step, averaged over the epochs.

    activations: numbers that the layers produce. saved_activations: those that the backward pass reads if all layers
    learn. backbone_share: share of the epochs in which all layers learn; otherwise only the last one does, with `head`
    of the parameters.
    """

    parameters: int
    flops_per_example: float
    activations_per_example: float
    saved_activations_per_example: float
    head: int = 0
    backbone_share: float = 1.0

    @property
    def learning(self) -> float:
        """The number of parameters that learn, averaged over the epochs."""
        return self.head + self.backbone_share * (self.parameters - self.head)


def step_seconds(work: ExampleCost, batch: int, hardware: Hardware, slices: int = 1) -> float:
    """Return the seconds of a step over `batch` examples, before learning from runs.

    slices: parts of the batch that are computed one after another before their gradients are summed.
    """
    examples = batch / slices / hardware.replicas
    compute = examples * work.flops_per_example / hardware.flops
    written = work.saved_activations_per_example if hardware.fused else work.activations_per_example
    crossings = FORWARD_PASSES + work.backbone_share * (ACTIVATION_PASSES - FORWARD_PASSES)
    moved = examples * written * crossings * hardware.bytes_per_number
    weights = 4 * (work.learning * WEIGHT_PASSES + work.parameters - work.learning)
    memory = (moved + weights) / hardware.memory_bandwidth
    if hardware.cpu:
        part = CPU_OVERHEAD + max(compute, memory) / CPU_UTILISATION
    else:
        part = DEVICE_OVERHEAD + (compute + memory) / DEVICE_UTILISATION
    return slices * part + communication_seconds(work, hardware)


def communication_seconds(work: ExampleCost, hardware: Hardware) -> float:
    """Return the seconds of summing the gradients over all replicas.

    A ring over n members sends 2 (n - 1) / n of the bytes over each link. Source: P. Patarasuk and X. Yuan, Bandwidth
    optimal all-reduce algorithms for clusters of workstations, 2009. First the devices of a worker, then the workers.
    """
    size, seconds = 4.0 * work.learning, 0.0
    if hardware.link and hardware.replicas > 1 and hardware.network is None:
        return _ring(hardware.replicas) * size / hardware.link
    if hardware.link and hardware.devices > 1:
        seconds += _ring(hardware.devices) * size / hardware.link
    if hardware.network and hardware.workers > 1:
        seconds += _ring(hardware.workers) * size / (hardware.network * NETWORK_SHARE)
    return seconds


def needed_bytes(work: ExampleCost, batch: int, hardware: Hardware, slices: int = 1) -> float:
    """Return the minimum memory of a device: saved activations, weights, gradients and two moments.

    slices: as in `step_seconds`; from two on, the gradients of the earlier ones are held as well.
    """
    return _device_bytes(
        work.saved_activations_per_example if work.backbone_share else 0, work, batch, hardware, slices
    )


def max_bytes(work: ExampleCost, batch: int, hardware: Hardware, slices: int = 1) -> float:
    """Return the memory of a device if nothing is fused and every layer's output is held."""
    return _device_bytes(work.activations_per_example, work, batch, hardware, slices)


def _device_bytes(numbers: float, work: ExampleCost, batch: int, hardware: Hardware, slices: int) -> float:
    activations = batch / slices / hardware.replicas * numbers * hardware.bytes_per_number
    learning = work.parameters if work.backbone_share else work.head
    return activations + 4.0 * work.parameters + (12.0 if slices == 1 else 16.0) * learning


def _ring(members: int) -> float:
    return 2 * (members - 1) / members
