"""The training loop: steps, checkpoints, speed and watchdog."""
