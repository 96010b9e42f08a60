"""Trains variants of a recipe on this machine: which is best, how far more data would go, and how fast it trains."""
