"""What the folder of push holds."""

from __future__ import annotations

from pydantic import Field

from trainyard.contract.artifacts.gate import Override
from trainyard.contract.document import Document


class Pushed(Document):
    """Output of push: where the model went.

    already is true if this very model was there before. override: of a model that a gate refused.
    """

    file = "pushed.json"
    made_by = "push"

    path: str
    version: int
    digest: str
    already: bool
    override: Override | None = Field(None, exclude_if=lambda override: override is None)
