"""Batches of inputs from the readers to the model, and rejected inputs with their reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from trainyard.readers.rows import BadRow

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class InputBatch:
    """Inputs for the model: `keys` (n,), and `inputs` (n,) by their name in the serving signature.

    extras: the columns (n,) that were read beside them, such as the label.
    """

    keys: pa.Array
    inputs: dict[str, Array]
    extras: dict[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """The memory of the inputs."""
        arrays = self.inputs.values()
        objects = (sum(map(sys.getsizeof, values)) for values in arrays if values.dtype == object)
        return sum(values.nbytes for values in arrays) + sum(objects)

    def halves(self) -> tuple[InputBatch, InputBatch]:
        """Return the first and the second half."""
        middle = len(self) // 2
        first = InputBatch(self.keys.slice(0, middle), {name: values[:middle] for name, values in self.inputs.items()})
        return first, InputBatch(
            self.keys.slice(middle), {name: values[middle:] for name, values in self.inputs.items()}
        )


Items = Iterator[InputBatch | BadRow]
