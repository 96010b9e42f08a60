"""The `trainyard` command: options, screens, and one module per verb in `verbs`."""
