"""Clusters: pools, scheduling, `doctor` and `explain`."""
