"""Differences between data and their schema."""

from __future__ import annotations

from trainyard.contract.document import FrozenModel


class Anomaly(FrozenModel):
    """One way in which data do not fit: of a column, what was expected, what was received, and how many rows.

    such_as: some of the rows by name, with what each holds.
    """

    column: str
    reason: str
    expected: str
    received: str
    rows: int = 0
    such_as: list[str] = []

    @property
    def sentence(self) -> str:
        """The anomaly as a person reads it."""
        rows = f" in {self.rows:,} {'row' if self.rows == 1 else 'rows'}" if self.rows else ""
        such_as = f", such as {'; '.join(self.such_as)}" if self.such_as else ""
        return f"{self.column}: expected {self.expected}, received {self.received}{rows}{such_as}"
