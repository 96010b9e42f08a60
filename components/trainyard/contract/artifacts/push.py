"""What the folder of push holds."""

from __future__ import annotations

from trainyard.contract.document import Document


class Pushed(Document):
    """Output of push: where the model went. already is true if this very model was there before."""

    file = "pushed.json"
    made_by = "push"

    path: str
    version: int
    digest: str
    already: bool
