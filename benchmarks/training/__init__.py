"""Benchmarks of the training: its loop, its scaling, a whole run."""
