"""One measured speed of a training."""

from __future__ import annotations

from trainyard.contract.document import FrozenModel


class Speed(FrozenModel):
    """One setting. examples_per_second: the mean over the rounds, and low and high its 95 % interval; of one round the
    mean, the slowest and the fastest of the epochs after the first. rounds: the mean of each round. times: how many
    times as fast as the first setting it is, with the 95 % interval over the rounds; None of one round.

    input_examples_per_second: what the model would take if its input cost nothing; larger if training waits for it.
    tflops: operations a second, peak_share their share of what the devices were measured to deliver, None if that was
    not measured, and published_share of what their maker publishes, None if the catalog has no figure.
    first_step_seconds: from the process's start to the first step, compilation included; of a Keras model, tracing and
    compiling alone. workers trained together; step_split_ms is what a step was spent on, as in `Training`. pool: where
    it trained, on which hardware; '' if it was this machine. dollars_per_hour: of all its nodes, None if no price is
    known.
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
    published_share: float | None = None
    rounds: list[float] = []
    times: float | None = None
    times_low: float | None = None
    times_high: float | None = None

    @property
    def examples_per_dollar(self) -> float | None:
        """Return how many examples are trained for a dollar, None if no price is known."""
        return 3600 * self.examples_per_second / self.dollars_per_hour if self.dollars_per_hour else None
