"""The named networks: the one list that recipes, the planner and `trainyard.models` read."""

from __future__ import annotations

from typing import Literal, get_args

Network = Literal["cnn_small", "alexnet", "resnet50", "mobilenet_v3_small", "efficientnet_v2_b0", "mlp", "wide_deep"]
MINIMUM_SIDE = {"cnn_small": 8, "alexnet": 57, "resnet50": 32, "mobilenet_v3_small": 32, "efficientnet_v2_b0": 32}
"""Of each network of images the smallest side, in pixels, that leaves one position after all strides."""
KERAS_APPLICATIONS = ("resnet50", "mobilenet_v3_small", "efficientnet_v2_b0")
"""The networks that Keras brings along; each other one has a module of its name in `trainyard.models`."""
COLUMN_NETWORKS = tuple(name for name in get_args(Network) if name not in MINIMUM_SIDE)
"""The networks that take columns instead."""
IMAGENET = "imagenet"
"""The weights of the networks that Keras brings along, as Keras publishes them."""


def suggested(side: int) -> Network:
    """Return a network to begin with for pictures of `side` pixels: a small one for small pictures. Chosen."""
    return "cnn_small" if side < 96 else "mobilenet_v3_small"
