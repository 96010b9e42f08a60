"""Benchmarks of what makes examples and feeds them to the training."""
