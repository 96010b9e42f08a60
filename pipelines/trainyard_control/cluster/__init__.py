"""What a cluster has: pools, scheduling, `doctor` and `explain`."""
