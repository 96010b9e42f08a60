"""What the plan predicted of a training, beside what came."""

from __future__ import annotations

from trainyard.contract.document import FrozenModel


class Prediction(FrozenModel):
    """Examples a second, with the 80 % interval, by what was known before the run."""

    low: float
    expected: float
    high: float

    def beside(self, measured: float) -> str:
        """Return what was predicted, and how the speed `measured` lies to it.

        >>> Prediction(low=80, expected=100, high=125).beside(130)
        'predicted 100 examples/s (80 – 125), came 130: 1.30 times, faster than the interval'
        """
        verdict = "within the interval"
        if not self.low <= measured <= self.high:
            verdict = f"{'faster' if measured > self.high else 'slower'} than the interval"
        return (
            f"predicted {self.expected:,.0f} examples/s ({self.low:,.0f} – {self.high:,.0f}), came {measured:,.0f}: "
            f"{measured / self.expected:.2f} times, {verdict}"
        )
