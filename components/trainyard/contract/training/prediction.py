"""The predicted speed of a training, next to the measured one."""

from __future__ import annotations

from trainyard.contract.document import FrozenModel


class Prediction(FrozenModel):
    """The predicted examples per second with their 80 % interval, made before the run."""

    low: float
    expected: float
    high: float

    def beside(self, measured: float) -> str:
        """Compare the prediction with the `measured` speed.

        >>> Prediction(low=80, expected=100, high=125).beside(130)
        'predicted 100 examples/s (80 – 125), measured 130 (1.30 of it, above the interval)'
        """
        verdict = "within the interval"
        if not self.low <= measured <= self.high:
            verdict = f"{'above' if measured > self.high else 'below'} the interval"
        return (
            f"predicted {self.expected:,.0f} examples/s ({self.low:,.0f} – {self.high:,.0f}), measured {measured:,.0f} "
            f"({measured / self.expected:.2f} of it, {verdict})"
        )
