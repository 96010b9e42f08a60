"""The `trainyard` command: its options and screens, and in `verbs` one verb a file."""
