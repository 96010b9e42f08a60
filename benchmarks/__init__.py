"""Benchmarks of Trainyard next to what a user would do instead, both in one run. `make bench` writes the table."""
