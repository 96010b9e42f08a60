"""What a checkpoint calls the variables of a training: the same in both engines, so that one goes on where the other stopped."""

from __future__ import annotations

from typing import Any

import keras

STEP = "loop/step"
LOSS_SUM = "loop/loss_sum"
SCALE = "loop/learning_rate_scale"


def named_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return every variable of `model` and `optimizer` by its name in a checkpoint."""
    named = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(model.variables)}
    return named | {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(optimizer.variables)}
