"""What a cluster has and does: pools, scheduling, `doctor` and `explain`."""
