"""Kubeflow's API: submit, runs and schedules."""
