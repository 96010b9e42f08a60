"""The files in the folder of export."""

from __future__ import annotations

from typing import Literal

from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.document import Document, FrozenModel, Split

EXPORTS_SPLIT: Split = "eval"
"""The split on which exports are compared; the test split judges the model once, before."""


class Latency(FrozenModel):
    """Milliseconds for one example, batch size 1, on the CPU that exported the file."""

    p50: float
    p95: float


class Answer(Latency):
    """The time of one answer on hardware that need not be the one that exported. accelerator: its name in the catalog.

    A JSON object with a list of them as `answers`, in `latency/` beside the recipe's outputs, is what plans read.
    """

    accelerator: str


class EdgeTpu(FrozenModel):
    """The part of an int8 file that a Coral Edge TPU runs; its CPU runs the rest.

    source: the log of edgetpu_compiler, or Coral's table of supported operations.
    multiply_adds: of one example; None if the file holds operations, such as loops, whose number is not known.
    first_unmapped: the first operation that the Edge TPU does not run, and why; '' if it runs all.
    """

    source: Literal["compiler", "table"]
    operations: int
    mapped_operations: int
    multiply_adds: int | None
    mapped_multiply_adds: int | None
    first_unmapped: str

    @property
    def mapped_share(self) -> float | None:
        """The share of the operations or of the multiply-adds, whichever is smaller; None if it is not known."""
        if self.multiply_adds is None or self.mapped_multiply_adds is None:
            return None
        return min(self.mapped_operations / self.operations, self.mapped_multiply_adds / max(self.multiply_adds, 1))


class DeviceTiming(FrozenModel):
    """A file timed on another machine, over SSH: milliseconds of one answer by the number of threads."""

    device: str
    machine: str
    latency_ms: dict[int, Latency]
    memory_mb: float

    @property
    def fastest(self) -> Latency:
        """The times with the number of threads that answers fastest."""
        return min(self.latency_ms.values(), key=lambda latency: latency.p95)


class ExportedFile(FrozenModel):
    """One exported file or folder and how it compares with the trained model on the whole eval split.

    accuracy is the main metric of the task, `spec.gates.MAIN_METRIC`: for a regression it is the mean absolute error.
    accuracy_difference is the export's minus the trained model's, so a rise is the worse for a regression.
    max_abs_difference is over the probabilities (or predictions). edge_tpu: of an int8 file.
    devices: the machines that measured it.
    """

    format: str
    path: str
    bytes: int
    accuracy: float
    accuracy_difference: float
    max_abs_difference: float
    latency_ms: Latency
    edge_tpu: EdgeTpu | None = None
    devices: list[DeviceTiming] = []


class SkewPath(FrozenModel):
    """One path from raw records to an answer, and the largest difference of its answers.

    path: saved_model; server, with the program's name; or the format of a file for
    devices after preprocess.py. difference is to the trained model on the examples of preprocess; that of a file for
    devices is to the same file on those examples. to_trained is always to the trained model. Both are None if the path
    gave no answers; note says why a path failed.
    """

    path: str
    records: int
    difference: float | None = None
    to_trained: float | None = None
    bound: float
    passed: bool
    note: str = ""


class Exports(Document):
    """Output of export: the files beside this document, their parity, and the gate over it.

    skew: the same raw records by every path.
    left_out: why a file of the default formats is not there, by its format. thresholds: by class, as the files have
    them. machine: where the files were made and timed.
    statistics.json (`drift.Statistics`) is that of the examples: a pushed model knows the data that it learnt from.
    """

    file = "exports.json"
    made_by = "export"

    exports: list[ExportedFile]
    gate: Verdict
    skew: list[SkewPath] = []
    left_out: dict[str, str] = {}
    thresholds: dict[str, float] = {}
    machine: str = ""
