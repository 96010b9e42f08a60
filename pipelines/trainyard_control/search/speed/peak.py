"""What the makers of accelerators publish that they compute, to hold a measured speed against."""

from __future__ import annotations

from trainyard.spec.hardware.catalog import catalog, named

NO_CPU = (
    "No published peak for this CPU: it follows from the clock under vector instructions and the multiply-add units, "
    "which no list here has. The share is of the measured peak."
)


def published_tflops(hardware: str, precision: str) -> float | None:
    """Return the TFLOP/s of one chip in `precision` (as in `Training`), None if the catalog has no figure.

    hardware: the catalog's name, or the product's as its driver tells it.
    """
    known = catalog().accelerators.get(hardware) or catalog().accelerators.get(named(hardware) or "")
    if known is None:
        return None
    return known.float32_tflops if precision == "float32" else known.mixed_tflops
