"""A gang on Kubernetes: its Job, the launcher that watches it, and what runs in each of its pods."""
