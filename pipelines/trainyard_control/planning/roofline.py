"""The time of one training step: what the hardware at its peak would need, divided by what it delivers of that.

A network's layers follow one another, and most are bound either by computing (products) or by moving memory (all
others), so an accelerator's times for both add up. On a CPU the slower of the two counts: its caches hold what one
layer hands to the next. Then replicas sum their gradients in a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

# Times that an activation crosses the memory in a step: written and read going forward, read going backward, and its
# gradient written and read.
ACTIVATION_PASSES = 5
FORWARD_PASSES = 2  # the first two of them, which are all where the layer and those before it do not learn
# Times that a weight (float32) does: read twice, its gradient written and read, two moments of the optimizer read and
# written. One that does not learn is read once.
WEIGHT_PASSES = 8
# What published runs deliver of the sum of both times: the geometric mean over the twelve runs of ResNet-50 on V100 and
# A100 that docs/experiments/published.md marks as tuned on. It was fitted to no other.
DEVICE_UTILISATION = 0.77
# Measured here: mobilenet_v3_small and cnn_small on two cores, see docs/benchmarks.md.
CPU_UTILISATION = 0.6
# Seconds of a step that no size explains. CPU: measured here on the smallest network; others: chosen, without a device.
CPU_OVERHEAD = 0.0006
DEVICE_OVERHEAD = 0.003
# Chosen: the share of a network's bandwidth that a ring of gradients over it gets.
NETWORK_SHARE = 0.5


@dataclass(frozen=True)
class ExampleCost:
    """What one example costs a network; operations are those of a whole step, the mean over the epochs.

    activations: the numbers that its layers put out; saved_activations: those of them that the backward pass reads, if
    all layers learn. backbone_share: the share of the epochs in which they do; else only the last one does, with `head`
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
        """The parameters that learn, the mean over the epochs."""
        return self.head + self.backbone_share * (self.parameters - self.head)


@dataclass(frozen=True)
class Site:
    """Where a training runs: `devices` a worker, and what each delivers at its peak, in operations and bytes a second.

    link: bytes a second that a device sends to the others of its worker, or of its slice; network: those that a worker
    sends to others, None if there is none between workers. memory_bytes: of one device, None if it does not limit.
    fused: XLA computes normalisations, activations and sums within the products before and after them, as it does on
    TPUs, so that what is written to memory is what the backward pass reads. A GPU's products are calls of a library,
    which read and write whole tensors. input_cores: those of all input workers, None if `cores` prepare the input.
    """

    hardware: str
    workers: int
    devices: int
    cores: float
    flops: float
    memory_bandwidth: float
    bytes_per_number: int = 4
    memory_bytes: float | None = None
    link: float | None = None
    network: float | None = None
    fused: bool = False
    input_cores: float | None = None

    @property
    def replicas(self) -> int:
        """Devices of all workers."""
        return self.workers * self.devices

    @property
    def cpu(self) -> bool:
        """Whether the cores themselves train."""
        return self.hardware == "CPU"


def step_seconds(work: ExampleCost, batch: int, site: Site, slices: int = 1) -> float:
    """Return the seconds that a step over `batch` examples takes, before anything was learned from runs.

    slices: parts of the batch that are computed one after the other before their gradients are summed.
    """
    examples = batch / slices / site.replicas
    compute = examples * work.flops_per_example / site.flops
    written = work.saved_activations_per_example if site.fused else work.activations_per_example
    crossings = FORWARD_PASSES + work.backbone_share * (ACTIVATION_PASSES - FORWARD_PASSES)
    moved = examples * written * crossings * site.bytes_per_number
    weights = 4 * (work.learning * WEIGHT_PASSES + work.parameters - work.learning)
    memory = (moved + weights) / site.memory_bandwidth
    if site.cpu:
        part = CPU_OVERHEAD + max(compute, memory) / CPU_UTILISATION
    else:
        part = DEVICE_OVERHEAD + (compute + memory) / DEVICE_UTILISATION
    return slices * part + communication_seconds(work, site)


def communication_seconds(work: ExampleCost, site: Site) -> float:
    """Return the seconds of summing the gradients over all replicas.

    A ring over n members sends 2 (n - 1) / n of the bytes over each link. Source: P. Patarasuk and X. Yuan, Bandwidth
    optimal all-reduce algorithms for clusters of workstations, 2009. First the devices of a worker, then the workers.
    """
    size, seconds = 4.0 * work.learning, 0.0
    if site.link and site.replicas > 1 and site.network is None:
        return _ring(site.replicas) * size / site.link
    if site.link and site.devices > 1:
        seconds += _ring(site.devices) * size / site.link
    if site.network and site.workers > 1:
        seconds += _ring(site.workers) * size / (site.network * NETWORK_SHARE)
    return seconds


def needed_bytes(work: ExampleCost, batch: int, site: Site, slices: int = 1) -> float:
    """Return the memory that a device must have at least: what the backward pass reads, the weights, and of those that
    learn gradients and two moments.

    slices: as for `step_seconds`; from two on, the gradients of those before are held as well.
    """
    return _device_bytes(work.saved_activations_per_example if work.backbone_share else 0, work, batch, site, slices)


def most_bytes(work: ExampleCost, batch: int, site: Site, slices: int = 1) -> float:
    """Return the memory that a device takes if nothing is fused and every layer's output is held."""
    return _device_bytes(work.activations_per_example, work, batch, site, slices)


def _device_bytes(numbers: float, work: ExampleCost, batch: int, site: Site, slices: int) -> float:
    activations = batch / slices / site.replicas * numbers * site.bytes_per_number
    learning = work.parameters if work.backbone_share else work.head
    return activations + 4.0 * work.parameters + (12.0 if slices == 1 else 16.0) * learning


def _ring(members: int) -> float:
    return 2 * (members - 1) / members
