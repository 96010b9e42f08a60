"""Recipes of tables whose rows have several classes, or several numbers to predict."""

from __future__ import annotations

from typing import Any

SONGS: dict[str, Any] = {
    "name": "songs",
    "task": "multi_label",
    "data": {
        "format": "csv",
        "path": "songs.csv",
        "label": "genres",
        "label_separator": ";",
        "features": {"tempo": {"type": "numeric"}},
    },
    "model": {"name": "mlp"},
}
HOUSES: dict[str, Any] = {
    "name": "houses",
    "task": "regression",
    "data": {
        "format": "csv",
        "path": "houses.csv",
        "targets": ["heating", "cooling"],
        "features": {"area": {"type": "numeric"}},
    },
    "model": {"name": "mlp"},
}
