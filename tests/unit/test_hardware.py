"""The catalog knows which slices of TPUs exist and how many hosts they have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainyard.spec.hardware.catalog import catalog, chips, hosts
from trainyard.spec.hardware.pools import Pool


@pytest.mark.parametrize(
    ("topology", "count", "expected"), [("1x1", 1, 1), ("2x4", 8, 1), ("2x4", 4, 2), ("16x16", 4, 64), ("4x4x8", 4, 32)]
)
def test_a_slice_has_as_many_hosts_as_its_chips_need(topology: str, count: int, expected: int) -> None:
    assert hosts(topology, count) == expected


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [
        ("tpu-v4-podslice", "16x16x16", "16x16x20"),
        ("tpu-v5p-slice", "16x16x24", "16x20x24"),
        ("tpu7x", "16x24x24", "24x24x24"),
    ],
)
def test_a_3d_torus_is_made_of_cubes_up_to_the_largest_job(name: str, largest: str, beyond: str) -> None:
    slices = catalog().accelerators[name].slices
    assert slices[largest] == [4] and chips([*slices][-1]) == chips(largest)
    assert beyond not in slices and "4x4x6" not in slices and "8x4x4" not in slices


def test_slices_come_smallest_first_and_single_hosts_among_them() -> None:
    assert [*catalog().accelerators["tpu-v5p-slice"].slices][:6] == [
        "2x2x1",
        "2x2x2",
        "2x2x4",
        "2x4x4",
        "4x4x4",
        "4x4x8",
    ]
    assert catalog().accelerators["tpu-v6e-slice"].slices["2x4"] == [8, 4]


def test_tensorflow_does_not_run_on_the_seventh_generation() -> None:
    assert [name for name, entry in catalog().accelerators.items() if not entry.tensorflow] == ["tpu7x"]


RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("gpu", "l4", ("nvidia-l4", 1, None, 1)),
        ("gpu", "h100x8", ("nvidia-h100-80gb", 8, None, 1)),
        ("gpu", "a100-80gbx2", ("nvidia-a100-80gb", 2, None, 1)),
        ("tpu", "v5e-8", ("tpu-v5-lite-podslice", 8, "2x4", 1)),
        ("tpu", "v5e-16", ("tpu-v5-lite-podslice", 4, "4x4", 4)),
        ("tpu", "v3-8", ("tpu-v3-device", 4, "2x2", 1)),
        ("tpu", "v3-32", ("tpu-v3-slice", 4, "4x4", 4)),
        ("tpu", "v5p-8", ("tpu-v5p-slice", 4, "2x2x1", 1)),
        ("tpu", "tpu7x-8", ("tpu7x", 4, "2x2x1", 1)),
        ("tpu", "v5p-1024", ("tpu-v5p-slice", 4, "8x8x8", 128)),
    ],
)
def test_one_name_gives_accelerator_count_topology_and_hosts(
    kind: str, name: str, expected: tuple[str, int, str | None, int]
) -> None:
    pool = Pool.model_validate({"accelerator": name, "resources": RESOURCES})
    assert pool == Pool.model_validate({"kind": kind, "accelerator": name, "resources": RESOURCES})
    assert (pool.accelerator, pool.count, pool.topology, pool.max_workers) == expected
    assert Pool.model_validate(pool.model_dump(by_alias=True)) == pool


def test_fields_beside_a_short_name_stay_or_are_refused() -> None:
    fields = {"kind": "tpu", "accelerator": "v5e-8", "resources": RESOURCES}
    assert Pool.model_validate(fields | {"count": 4}).workers == 2
    with pytest.raises(ValueError, match=r"2x4 with 8 chips a host is 1 host, .* 3 given"):
        Pool.model_validate(fields | {"workers": 3})


@pytest.mark.parametrize(
    ("kind", "name", "nearest"),
    [
        ("tpu", "v5e-15", "v5e-16"),
        ("tpu", "v5e-1000", "v5e-256"),
        ("gpu", "h100x3", "h100x4"),
        ("gpu", "h100-8", "h100x8"),
        ("gpu", "H100X8", "h100x8"),
        ("tpu", "v5-16", "v5p-16"),
        ("tpu", "v5litepod-16", "v5e-16"),
        ("tpu", "v7x-8", "tpu7x-8"),
        ("tpu", "v5e", "v5e-8"),
        ("tpu", "tpu-v5e", "v5e-8"),
        ("tpu", "tpu-v6e-15", "v6e-16"),
        ("gpu", "l5", "l4"),
        ("gpu", "l44", "l4"),
        ("gpu", "t44", "t4"),
        ("gpu", "h1008", "h100"),
        ("gpu", "nvidia-l44", "nvidia-l4"),
        ("tpu", "v5e16", "v5e-16"),
        ("gpu", "gpu-l4", "l4"),
        ("gpu", "a10g", "a100"),
        ("gpu", "a100-80", "a100-80gb"),
        ("gpu", "nvidia-tesla-t4x3", "t4x4"),
        ("gpu", "h100x8x2", "h100x8"),
        ("gpu", "a100-80x4", "a100-80gbx4"),
        ("tpu", "v6e-8x2", "v6e-16"),
        ("tpu", "v6e-2x4", "v6e-8"),
        ("tpu", "v4-2x2x2", "v4-16"),
        ("tpu", "tpu7x-2x2", "tpu7x-8"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_with_and_without_its_kind(
    kind: str, name: str, nearest: str
) -> None:
    for fields, words in (({"kind": kind}, f"{kind} "), ({}, "")):
        with pytest.raises(ValueError, match=f"no {words}'{name}'.* Did you mean '{nearest}'"):
            Pool.model_validate(fields | {"accelerator": name, "resources": RESOURCES})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"accelerator": "h100x8", "count": 4},
         "count: h100x8 has 8 GPUs a node, 4 was given. Leave count out, or give accelerator: h100x4"),
        ({"accelerator": "l4x1", "count": 2}, "count: l4x1 has 1 GPU a node, 2 was given. Leave count out"),
        ({"accelerator": "h100x8", "count": 3}, "Leave count out, or give accelerator: h100 beside it"),
        ({"accelerator": "v5e-16", "topology": "2x4"},
         "topology: v5e-16 has 16 chips, and 2x4 has 8. Leave topology out, or give accelerator: tpu-v5-lite-podslice"),
    ],
)  # fmt: skip
def test_a_count_beside_a_name_with_another_number_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Pool.model_validate(fields | {"resources": RESOURCES})


@pytest.mark.parametrize(
    "fields",
    [
        {"accelerator": "h100x8", "count": 8},
        {"accelerator": "h100", "count": 4},
        {"accelerator": "nvidia-l4", "count": 2},
        {"accelerator": "v5e-16", "topology": "4x4"},
    ],
)
def test_a_count_beside_a_name_that_has_the_same_or_no_number_is_taken(fields: dict[str, Any]) -> None:
    assert Pool.model_validate(fields | {"resources": RESOURCES}).count == fields.get("count", 4)


def test_an_unknown_name_of_another_kind_is_refused_with_the_nearest_of_that_kind() -> None:
    for kind, name, nearest in (("gpu", "v5e-15", "v5e-16"), ("tpu", "h100x3", "h100x4"), ("tpu", "l4x5", "l4x4")):
        with pytest.raises(ValueError, match=f"no {kind} '{name}'.* Did you mean '{nearest}'"):
            Pool.model_validate({"kind": kind, "accelerator": name, "resources": RESOURCES})


@pytest.mark.parametrize(
    ("name", "workers", "advice"),
    [
        ("h100x16", 1, "8 of the largest machine. Give h100x8 and workers: 2"),
        ("l4x20", 2, "8 of the largest machine. Give l4x8 and workers: 6"),
        ("a100x32", {"min": 1, "max": 2}, "16 of the largest machine. Give a100x16 and 2 times the workers"),
    ],
)
def test_more_gpus_than_a_machine_has_are_refused_with_the_gang_that_has_them(
    name: str, workers: object, advice: str
) -> None:
    with pytest.raises(ValueError, match=f"accelerator: '{name}' is more than the {advice}"):
        Pool.model_validate({"accelerator": name, "workers": workers, "resources": RESOURCES})


def test_a_name_that_is_like_none_is_refused_without_a_guess_and_another_kind_with_its_own() -> None:
    for name in ("rtx4090", "mi300x"):
        with pytest.raises(ValueError, match=f"no gpu '{name}'. Known: [^?]*nvidia-b200. "):
            Pool.model_validate({"kind": "gpu", "accelerator": name, "resources": RESOURCES})
    for kind in ("gpu", "cpu"):
        with pytest.raises(ValueError, match=f"kind: v5e-16 is a tpu, '{kind}' was given. Leave kind out"):
            Pool.model_validate({"kind": kind, "accelerator": "v5e-16", "resources": RESOURCES})
