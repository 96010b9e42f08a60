"""Kubernetes quantities as numbers."""

from __future__ import annotations


def in_cores(quantity: str) -> float:
    """Return a quantity of cpu in cores, such as 0.25 for 250m."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def in_bytes(quantity: str) -> float:
    """Return a quantity of memory in bytes, such as 1073741824 for 1Gi."""
    if quantity.endswith("m"):  # the API server writes fractions of a byte so
        return float(quantity[:-1]) / 1000
    unit = quantity.lstrip("0123456789.")
    factor = float((1024 if unit.endswith("i") else 1000) ** " KMGTPE".index(unit[:1].upper() or " "))
    return float(quantity.removesuffix(unit)) * factor
