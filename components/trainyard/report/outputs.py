"""The outputs of a run's steps, read once for its record and its report."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from trainyard.contract.artifacts.evaluate import Evaluation
from trainyard.contract.artifacts.export import EXPORTS_SPLIT, Exports
from trainyard.contract.artifacts.gate import Verdict
from trainyard.contract.artifacts.preprocess import Examples
from trainyard.contract.artifacts.push import Pushed
from trainyard.contract.artifacts.train import Training
from trainyard.contract.document import Document, Split
from trainyard.contract.pipeline import DOCUMENTS
from trainyard.errors import TrainyardError

D = TypeVar("D", bound=Document)


@dataclass(frozen=True)
class Outputs:
    """Committed output folders by step, and their documents; None if a step did not run.

    examples: also None if the recipe has no data.
    """

    folders: dict[str, str]
    examples: Examples | None
    training: Training | None
    evaluation: Evaluation | None
    exports: Exports | None
    pushed: Pushed | None

    @property
    def gates(self) -> list[tuple[str, Split | None, Verdict]]:
        """Each gate: its name, its split (None for a custom program's own metrics), and its verdict."""
        model = [("model", self.evaluation.split, self.evaluation.gate)] if self.evaluation else []
        if self.exports and self.exports.exports:
            return [*model, ("exports", EXPORTS_SPLIT, self.exports.gate)]
        return model

    @property
    def verdict(self) -> str:
        """The verdict over all gates: blessed or refused."""
        return "blessed" if all(gate.verdict == "blessed" for _, _, gate in self.gates) else "refused"


def read(folders: dict[str, str], skip_unreadable: bool = False) -> Outputs:
    """Read the outputs in `folders`.

    Raises `DataError` if a folder holds no output of its step; with `skip_unreadable` it is left out.
    """
    documents: dict[str, Document | None] = {}
    skipped = (TrainyardError,) if skip_unreadable else ()
    for step, uri in folders.items():
        with suppress(*skipped):
            documents[step] = DOCUMENTS[step].read(uri) if step in DOCUMENTS else None
    return Outputs(
        {step: folders[step] for step in documents},
        examples if (examples := _find(Examples, documents)) and examples.splits else None,
        _find(Training, documents),
        _find(Evaluation, documents),
        _find(Exports, documents),
        _find(Pushed, documents),
    )


def _find(kind: type[D], documents: dict[str, Document | None]) -> D | None:
    return next((document for document in documents.values() if isinstance(document, kind)), None)
