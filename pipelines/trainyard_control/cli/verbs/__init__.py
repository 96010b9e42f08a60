"""The verbs of the `trainyard` command, one per module."""
