"""Metrics of predictions, as numbers and for the bootstrap, and the recipe's own metrics."""
