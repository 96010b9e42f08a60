"""Reads what is to be predicted: pictures and tables, in files or in memory, as batches for the model."""
