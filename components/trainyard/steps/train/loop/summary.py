"""The curves of a training for TensorBoard."""

from __future__ import annotations

import tensorflow as tf

from trainyard.contract.artifacts.train import Epoch


def write_summary(writer: tf.summary.SummaryWriter, epoch: Epoch) -> None:
    """Write the losses, the metric and the speed of `epoch`."""
    with writer.as_default(step=epoch.step):
        for name in ("learning_rate", "train_loss", "eval_loss", "metric", "examples_per_second"):
            tf.summary.scalar(name, getattr(epoch, name))
