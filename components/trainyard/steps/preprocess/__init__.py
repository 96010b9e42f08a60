"""The first step: checks the records, splits them, analyses the training split and writes example shards."""
