"""A gang on Kubernetes: its Job, its launcher, and the program of its pods."""
