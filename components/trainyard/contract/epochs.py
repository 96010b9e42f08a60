"""The computation of a training's epochs, counted alike by the run record and the planner."""

from __future__ import annotations

from trainyard.spec.recipe import Recipe

# Chosen as usual: the backward pass takes the products of the forward pass twice, for inputs and for weights.
# Source: A. Griewank and A. Walther, Evaluating Derivatives, 2008, chapter 4; D. Hernandez and T. Brown,
# arXiv:2005.04305.
TRAINING_PASSES = 3

MEMORY_BYTES = 512 << 20
"""A split whose decoded features take more is read from its files in every epoch. Chosen, and the same on every
machine, for the order of the batches depends on it."""


def backbone_share(recipe: Recipe) -> float:
    """Return the share of epochs in which all layers learn; in the others only the last layer does."""
    if recipe.model.freeze == "backbone":
        return 0.0
    fine_tune = recipe.train.fine_tune
    return 1 - fine_tune.head_epochs / recipe.train.epochs if fine_tune else 1.0


def pixel_share(recipe: Recipe, side: int) -> float:
    """Return the mean share of pixels over the epochs, for images whose shorter side is `side`."""
    stages, epochs = recipe.train.progressive_resizing, recipe.train.epochs
    return 1 - sum(stage.epochs / epochs * (1 - (min(stage.size, side) / side) ** 2) for stage in stages)


def operations(whole: float, share: float) -> float:
    """Return the mean operations of a step that takes `whole` if all layers learn, in `share` of the epochs.

    Nothing is propagated back through a frozen backbone; the last layer's products are neglected then.
    """
    return whole * (1 + (TRAINING_PASSES - 1) * share) / TRAINING_PASSES
