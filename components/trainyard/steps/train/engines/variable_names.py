"""The names of a training's variables in a checkpoint: the same in both engines, so that one resumes the other's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

STEP = "loop/step"
LOSS_SUM = "loop/loss_sum"
SCALE = "loop/learning_rate_scale"


def named_variables(model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer]) -> dict[str, Any]:
    """Return every variable of `model` and of the `optimizers` of its phases by its name in a checkpoint."""
    names = {f"model/{i:04d}/{v.path}": v for i, v in enumerate(model.variables)}
    variables = [variable for optimizer in optimizers for variable in optimizer.variables]
    return names | {f"optimizer/{i:04d}/{v.path}": v for i, v in enumerate(variables)}
