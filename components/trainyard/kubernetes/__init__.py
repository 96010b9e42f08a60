"""Kubernetes: the client, labels, pod specs, and the diagnosis of pods."""
