"""The catalog knows which slices of TPUs exist and how many hosts they have."""

from __future__ import annotations

import pytest

from trainyard.spec.hardware.catalog import catalog, chips, hosts


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
