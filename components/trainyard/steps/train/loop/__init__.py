"""The training loop: steps, checkpoints, pace and evidence."""
