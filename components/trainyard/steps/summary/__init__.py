"""The exit handler: a run's record and report."""
