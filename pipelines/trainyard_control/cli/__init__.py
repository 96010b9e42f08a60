"""The `trainyard` command, one verb a file."""
