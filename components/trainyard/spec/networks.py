"""The named networks: the one list that recipes, the planner and `trainyard.models` read."""

from __future__ import annotations

from typing import Literal, get_args

KerasApplication = Literal[
    "resnet50",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "efficientnet_v2_b0",
    "efficientnet_v2_b1",
    "efficientnet_v2_b2",
    "efficientnet_v2_b3",
    "convnext_tiny",
]
Network = Literal[
    "cnn_small", "alexnet", "vit_small", "resnet50_v1_5", KerasApplication, "mlp", "wide_deep", "boosted_trees"
]
KERAS_APPLICATIONS: tuple[KerasApplication, ...] = get_args(KerasApplication)
"""The networks of keras.applications; each other network has a module in `trainyard.models`."""
MINIMUM_SIDE: dict[str, int] = {
    "cnn_small": 8,
    "alexnet": 57,
    "vit_small": 8,
    "resnet50_v1_5": 32,
    **{name: 32 for name in KERAS_APPLICATIONS},
}
"""The smallest image side, in pixels, that leaves one position after all strides."""
ANY_SIZE = tuple(name for name in MINIMUM_SIDE if name.startswith(("resnet50", "mobilenet_v3", "efficientnet_v2")))
"""The networks whose layers accept any larger image size."""
MODEL_FAMILIES: dict[str, tuple[Network, ...]] = {
    "basic": ("mobilenet_v3_small", "efficientnet_v2_b0", "convnext_tiny"),
    "efficient": tuple(name for name in KERAS_APPLICATIONS if name.startswith(("mobilenet", "efficientnet"))),
}
"""Networks to compare, the cheapest first; basic: the fast, balanced and accurate networks of the docs."""
COLUMN_NETWORKS = tuple(name for name in get_args(Network) if name not in MINIMUM_SIDE)
"""The models that take columns."""
TREES: Network = "boosted_trees"
"""The model that scikit-learn trains: no network, and without layers, batches and epochs."""
BLOCK_SCALABLE: tuple[Network, ...] = ("cnn_small",)
"""The networks whose convolutions `model.blocks` defines."""
DEPTH_SCALABLE: tuple[Network, ...] = ("cnn_small", "mlp", "wide_deep")
"""The networks whose blocks `model.depth` repeats."""
WIDTH_SCALABLE = (*DEPTH_SCALABLE, *(name for name in KERAS_APPLICATIONS if name.startswith("mobilenet_v3")))
"""The networks whose channels or units `model.width` multiplies; Keras calls it alpha."""
PUBLISHED_WIDTHS = (0.75, 1.0)
"""The widths with published weights, for the networks of keras.applications in WIDTH_SCALABLE."""
IMAGENET = "imagenet"
"""Keras' published weights of the networks of keras.applications."""


def suggested(side: int) -> Network:
    """Return a network to start with for images of `side` pixels: a small one for small images. Chosen."""
    return "cnn_small" if side < 96 else "mobilenet_v3_small"
