"""Predicts what a training would take on each pool, and chooses one. Docs: explanation/planning.md."""
