"""The verbs of the `trainyard` command, one a file."""
