"""Statistics and quality of the data in preprocess."""
