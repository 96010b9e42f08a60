"""Baselines of a model: a constant answer and boosted trees; and the importance of columns."""
