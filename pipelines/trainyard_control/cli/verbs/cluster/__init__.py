"""The verbs about a cluster: what it must have, what it schedules, and pipelines on their way to it."""
