"""The hardware that a training can run on, a pool or this machine, and the time of a training step on it.

The time is what the hardware needs at its peak, divided by its utilization. Layers run one after another, and most are
bound either by computing (products) or by moving memory (all others), so an accelerator's times for both add up. On a
CPU the slower of the two counts, because its caches hold what one layer hands to the next. Then replicas sum their
gradients in a ring.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard import quantity
from trainyard.contract.gang import input_pool
from trainyard.errors import ConfigurationError
from trainyard.spec.environment import Environment
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.catalog import Platform, catalog, named
from trainyard.spec.hardware.pools import Pool
from trainyard.spec.recipe import Recipe

THIS_MACHINE = "this machine"
UNKNOWN_NETWORK = 1e9  # bytes per second between nodes that the catalog does not know; chosen
_GIB = 1 << 30
_DRIVER = Path("/proc/driver/nvidia/gpus")
# Times that an activation crosses the memory in a step: written and read going forward, read going backward, and its
# gradient written and read.
ACTIVATION_PASSES = 5
FORWARD_PASSES = 2  # the first two of them, if neither the layer nor those before it learn
# Times that a weight (float32) does: read twice, its gradient written and read, two moments of the optimizer read and
# written. One that does not learn is read once.
WEIGHT_PASSES = 8
# Utilization of published runs: the geometric mean over the twelve runs of ResNet-50 on V100 and
# A100 that docs/explanation/planning.md marks as tuned on. It was fitted to no other.
DEVICE_UTILISATION = 0.77
# Measured here: mobilenet_v3_small and cnn_small on two cores, see docs/benchmarks.md.
CPU_UTILISATION = 0.6
# Constant overhead of a step in seconds. CPU: measured here on the smallest network; others: chosen, without a device.
CPU_OVERHEAD = 0.0006
DEVICE_OVERHEAD = 0.003
# Chosen: share of the network's bandwidth that a ring of gradients gets.
NETWORK_SHARE = 0.5


@dataclass(frozen=True)
class Hardware:
    """The hardware of a training: `devices` per worker, each with its peak in operations and bytes per second.

    link: bytes per second from a device to the others of its worker or slice. network: bytes per second from a worker
    to others, None without a network between workers. memory_bytes: of one device, None if it is no limit. fused: XLA
    computes normalizations, activations and sums within the neighboring products, as on TPUs, so that only what the
    backward pass reads is written to memory; a GPU's products are library calls, which read and write whole tensors.
    input_workers: their number, each with `input_cores`; without any, `cores` prepare the input.
    """

    name: str
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
    input_workers: int = 0
    input_cores: float = 0.0

    @property
    def replicas(self) -> int:
        """The devices of all workers."""
        return self.workers * self.devices

    @property
    def cpu(self) -> bool:
        """True if the cores themselves train."""
        return self.name == "CPU"


def pool_hardware(recipe: Recipe, environment: Environment, pool: Pool) -> Hardware:
    """Return the hardware of a pool's workers, with the environment's input workers.

    Raises `ConfigurationError` if the catalog has no figures.
    """
    input_workers_pool = input_pool(environment)
    input_cores = _cores(input_workers_pool, environment.platform) if input_workers_pool else 0.0
    machine, cores = machines.machine_of(pool, environment.platform), _cores(pool, environment.platform)
    gbit = machine[1].network_gbit if machine else None
    network = (gbit * 1e9 / 8 if gbit else UNKNOWN_NETWORK) if pool.max_workers > 1 else None
    if pool.accelerator is None:
        hardware = cpu_hardware(cores, pool.max_workers, network)
        return replace(hardware, input_workers=environment.input_count, input_cores=input_cores)
    if pool.kind == "tpu":  # chips of a slice communicate without the network
        network = None
    hardware = accelerator_hardware(
        recipe.train.precision, pool.accelerator, pool.count, pool.max_workers, cores, network
    )
    return replace(hardware, input_workers=environment.input_count, input_cores=input_cores)


def _cores(pool: Pool, platform: Platform) -> float:
    """Return the cores of one pod of `pool`."""
    machine = machines.machine_of(pool, platform)
    if pool.resources.limits.cpu or machine is None:
        return quantity.in_cores(pool.resources.limits.cpu or pool.resources.requests.cpu)
    return machines.allocatable(machine[1], platform)[0]


def local_hardware(recipe: Recipe, workers: int | None = None) -> Hardware:
    """Return the hardware of this machine: its GPUs if a driver shows them, otherwise its cores.

    workers: of a gang with another number than the recipe's.
    """
    cores = len(os.sched_getaffinity(0))
    names = [named(product) for product in _gpus()]
    if names and names[0]:
        return accelerator_hardware(recipe.train.precision, names[0], len(names), 1, cores, None)
    workers = workers or recipe.train.workers
    return cpu_hardware(cores / workers, workers, None)


def cpu_hardware(cores: float, workers: int, network: float | None) -> Hardware:
    """Return the hardware of `workers` processes with `cores` each."""
    core = catalog().core
    return Hardware(
        name="CPU",
        workers=workers,
        devices=1,
        cores=cores,
        flops=cores * core.float32_gflops * 1e9,
        memory_bandwidth=cores * core.memory_gb_per_second * 1e9,
        network=network,
    )


def accelerator_hardware(
    precision: str, name: str, devices: int, workers: int, cores: float, network: float | None
) -> Hardware:
    """Return the hardware of `workers` workers with `devices` accelerators each.

    Raises `ConfigurationError` if the catalog has no figures.
    """
    known = catalog().accelerators[name]
    tpu = known.kind == "tpu"
    mixed = precision != "float32"
    # A TPU multiplies float32 in passes of bfloat16, by default in one.
    tflops = known.mixed_tflops if mixed or tpu else known.float32_tflops
    if tflops is None or known.memory_gb_per_second is None:
        raise ConfigurationError(f"no published figures of {name} are in the catalog")
    return Hardware(
        name=name,
        workers=workers,
        devices=devices,
        cores=cores,
        flops=tflops * 1e12,
        memory_bandwidth=known.memory_gb_per_second * 1e9,
        bytes_per_number=2 if mixed else 4,
        memory_bytes=known.memory_gib * _GIB if known.memory_gib else None,
        link=known.link_gb_per_second * 1e9 if known.link_gb_per_second else None,
        network=network,
        fused=tpu,
    )


def _gpus() -> list[str]:
    """Return the product names of this machine's NVIDIA GPUs from its driver."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(_DRIVER.glob("*/information"))]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return [value.strip() for key, _, value in lines if key == "Model"]


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
