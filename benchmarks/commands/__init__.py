"""Benchmarks of the commands: their start, predict, the planner, the steps on Kubeflow."""
