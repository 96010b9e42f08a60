"""Searches and measurements over trainings: sweeps, learning curves, benchmarks and comparisons."""
