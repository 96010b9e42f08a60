"""Training by a custom program: its start, its reported progress, its checkpoints and its model."""
