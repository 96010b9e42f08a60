"""The names of a training's variables in a checkpoint: the same in both engines, so that one resumes the other's."""

from __future__ import annotations

from typing import Any

import keras

STEP = "loop/step"
LOSS_SUM = "loop/loss_sum"
SCALE = "loop/learning_rate_scale"


def named_variables(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Return every variable of `model` and `optimizer` by its name in a checkpoint."""
    names = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(model.variables)}
    return names | {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(optimizer.variables)}
