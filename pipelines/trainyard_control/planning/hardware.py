"""The hardware that a training can run on: a pool of an environment, or this machine."""

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


@dataclass(frozen=True)
class Hardware:
    """The hardware of a training: `devices` per worker, each with its peak in operations and bytes per second.

    link: bytes per second from a device to the others of its worker or slice. network: bytes per second from a worker
    to others, None without a network between workers. memory_bytes: of one device, None if it is no limit. fused: XLA
    computes normalizations, activations and sums within the neighboring products, as on TPUs, so that only what the
    backward pass reads is written to memory; a GPU's products are library calls, which read and write whole tensors.
    input_cores: of all input workers, None if `cores` prepare the input.
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
    input_cores: float | None = None

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
    input_cores = (
        environment.input_count * _cores(input_workers_pool, environment.platform) if input_workers_pool else None
    )
    machine, cores = machines.machine_of(pool, environment.platform), _cores(pool, environment.platform)
    gbit = machine[1].network_gbit if machine else None
    network = (gbit * 1e9 / 8 if gbit else UNKNOWN_NETWORK) if pool.max_workers > 1 else None
    if pool.accelerator is None:
        return replace(cpu_hardware(cores, pool.max_workers, network), input_cores=input_cores)
    if pool.kind == "tpu":  # chips of a slice communicate without the network
        network = None
    hardware = accelerator_hardware(
        recipe.train.precision, pool.accelerator, pool.count, pool.max_workers, cores, network
    )
    return replace(hardware, input_cores=input_cores)


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
