"""Statistics of data, and the drift between two data sets."""
