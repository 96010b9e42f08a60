"""The input pipeline: from example shards to augmented batches."""
