"""Example shards to batches."""
