"""Reads what is to be predicted: images and tables, in files or in memory, as batches for the model."""
