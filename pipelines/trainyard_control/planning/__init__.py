"""Predicts the time and cost of a training on each pool. Docs: explanation/planning.md."""
