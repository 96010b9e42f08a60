"""Judges the trained model: metrics with intervals, slices, the worst examples, and the gate."""
