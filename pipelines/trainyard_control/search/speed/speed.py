"""One measured speed of a training."""

from __future__ import annotations

from trainyard.contract.document import Part


class Speed(Part):
    """One setting. examples_per_second: the mean, and low and high of the epochs after the first.

    input_examples_per_second: what the model would take if its input cost nothing; larger if training waits for it.
    tflops: operations a second, and peak_share their share of what the devices were measured to deliver.
    peak_share: None if the peak was not measured. first_step_seconds: from the process's start to the first step,
    compilation included; of a Keras model, tracing and compiling alone. workers trained together; step_split_ms is
    what a step was spent on, as in `Training`. pool: where it trained, on which hardware; '' if it was this machine.
    dollars_per_hour: of all its nodes, None if no price is known.
    """

    setting: str
    values: dict[str, float | int | str | bool]
    batch_size: int
    examples_per_second: float
    low: float
    high: float
    input_examples_per_second: float
    tflops: float
    peak_share: float | None
    first_step_seconds: float
    workers: int = 1
    step_split_ms: dict[str, float] = {}
    pool: str = ""
    hardware: str = ""
    dollars_per_hour: float | None = None

    @property
    def examples_per_dollar(self) -> float | None:
        """Return how many examples are trained for a dollar, None if no price is known."""
        return 3600 * self.examples_per_second / self.dollars_per_hour if self.dollars_per_hour else None
