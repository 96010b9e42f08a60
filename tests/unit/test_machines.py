"""Machine types: a pool that no node could serve is refused; a node's price is known with its date or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import quantity
from trainyard.errors import ConfigurationError
from trainyard.spec import environment as environments
from trainyard.spec.hardware import machines
from trainyard.spec.hardware.catalog import catalog
from trainyard.spec.hardware.pools import Pool, placement
from trainyard.spec.plain_yaml import dotted


def pool(kind: str = "gpu", cpu: str = "2", memory: str = "8Gi", **values: object) -> Pool:
    if kind == "gpu":
        values = {"accelerator": "nvidia-l4", "count": 1} | values
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    return Pool.model_validate({"kind": kind, "resources": resources} | values)


def test_every_machine_has_an_accelerator_of_the_catalog() -> None:
    for platform in ("gke", "eks", "aks"):
        known = machines.from_platform(platform)
        assert known is not None
        named = {m.accelerator for m in known.machines.values() if m.accelerator} | set(known.attachable)
        assert named <= set(catalog().accelerators)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            pool(machine="n2-standard-8"),
            "a n2-standard-8 has no accelerator, and the pool says 1 nvidia-l4. Name g2-standard-4.",
        ),
        (
            pool(machine="g2-standard-24"),
            "a g2-standard-24 has 2 nvidia-l4, and the pool says 1 nvidia-l4. Name g2-standard-4.",
        ),
        (pool(machine="g2-standard-8", count=3), "No machine has 3 of them; the nearest number is 4."),
        (pool(machine="g2-standard-7"), "machine: gke has no g2-standard-7. Did you mean 'g2-standard-8'?"),
        (pool("cpu", machine="g2-standard-8"), "a g2-standard-8 has 1 nvidia-l4, and the pool says none. Name"),
        (
            pool(machine="g2-standard-8", memory="32Gi"),
            "resources.requests.memory: 32Gi on a g2-standard-8, of whose 32Gi a pod has 28.3Gi. "
            "Give less, or name g2-standard-12.",
        ),
        (
            pool(machine="g2-standard-8", cpu="8"),
            "resources.requests.cpu: 8 on a g2-standard-8, of whose 8 a pod has 7.91. "
            "Give less, or name g2-standard-12.",
        ),
        (pool(machine="n1-standard-8", accelerator="nvidia-tesla-t4", count=3), "the nearest number is 4."),
        (pool("cpu", machine="n2-standard-80", cpu="90"), "Give less."),
        (pool(count=16, workers=2), "count: no machine of gke has 16 nvidia-l4, at most 8. Give 8 and workers: 4."),
        (pool(accelerator="nvidia-tesla-t4", count=8), "at most 4. Give 4 and workers: 2."),
    ],
)
def test_a_pool_that_no_node_serves_is_refused_with_the_nearest_that_does(written: Pool, sentence: str) -> None:
    ((place, why),) = machines.faults(written, "gke")
    assert sentence in f"{dotted(place)}: {why}"


@pytest.mark.parametrize("machine", ["n2-standard-8", "n4-standard-8", "my-own-server"])
def test_a_machine_that_the_catalog_does_not_know_may_exist(machine: str) -> None:
    assert machines.faults(pool("cpu", machine=machine), "gke") == []
    assert (
        machines.faults(pool("cpu", machine=machine), "kubernetes")
        == machines.faults(pool(count=16), "kubernetes")
        == []
    )


def test_an_environment_is_refused_with_the_place_of_the_fault(tmp_path: Path) -> None:
    gke = (environments.BUNDLED / "gke.yaml").read_text()
    file = tmp_path / "own.yaml"
    file.write_text(gke.replace("machine: ct5lp-hightpu-8t", "machine: ct5lp-hightpu-4t"))
    with pytest.raises(ConfigurationError) as error:
        environments.load(str(file))
    assert str(error.value) == (
        f"{file}:38: pools.v5e-8.machine: a ct5lp-hightpu-4t has 4 tpu-v5-lite-podslice, and the pool says 8 "
        "tpu-v5-lite-podslice. Name ct5lp-hightpu-8t."
    )


def test_a_price_comes_with_its_region_and_date() -> None:
    assert machines.price(pool(machine="g2-standard-8"), "gke") == machines.Price(
        0.8536, False, "us-central1", "2026-11-21"
    )
    assert machines.price(pool(machine="g2-standard-8", spot=True), "gke") == machines.Price(
        0.3406, True, "us-central1", "2026-11-21"
    )


def test_nearly_every_machine_has_a_dated_price() -> None:
    """What no public source tells stays without one, and is named here."""
    missing = set()
    for platform in ("gke", "eks", "aks"):
        known = machines.from_platform(platform)
        assert known is not None
        missing |= {name for name, machine in known.machines.items() if machine.usd_per_hour is None}
    assert missing == {"a3-ultragpu-8g", "a4-highgpu-8g", "tpu7x-standard-1t", "tpu7x-standard-4t"}
    n2 = machines.price(pool("cpu", machine="n2-standard-8"), "gke")
    assert n2 == machines.Price(0.3885, False, "us-central1", "2026-08-03")


def test_attached_accelerators_are_added_to_the_price_of_their_host() -> None:
    priced = machines.price(pool(machine="n1-standard-8", accelerator="nvidia-tesla-t4", count=2), "gke")
    assert priced is not None and priced.usd_per_hour == pytest.approx(0.38 + 2 * 0.35)


def test_the_environments_price_wins_and_an_unknown_one_stays_unknown() -> None:
    assert machines.price(pool(machine="g2-standard-8", price_per_hour=2), "gke") == machines.Price(2, False)
    assert machines.price(pool(machine="a4-highgpu-8g", accelerator="nvidia-b200", count=8), "gke") is None
    assert machines.price(pool(), "kubernetes") is None


def test_without_a_name_the_smallest_machine_with_room_is_meant() -> None:
    named = [machines.machine_of(pool(cpu=cpu), "gke") for cpu in ("2", "6", "20")]
    assert [machine and machine[0] for machine in named] == ["g2-standard-4", "g2-standard-8", "g2-standard-32"]


def test_platforms_without_accelerator_labels_select_the_machine_type() -> None:
    needs = placement(pool(machine="g6.xlarge"), "eks")
    assert needs.node_selector == {"node.kubernetes.io/instance-type": "g6.xlarge"}
    assert placement(pool(), "karpenter").node_selector == {"karpenter.k8s.aws/instance-gpu-name": "l4"}
    assert placement(pool(), "eks").node_selector == {}


@pytest.mark.parametrize(
    ("written", "number"), [("1Gi", 1 << 30), ("32668Mi", 32668 << 20), ("1500M", 1.5e9), ("4", 4), ("2k", 2000)]
)
def test_memory_is_read_as_kubernetes_writes_it(written: str, number: float) -> None:
    assert quantity.in_bytes(written) == number
