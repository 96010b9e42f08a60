"""Trains variants of a recipe on this machine, and says which is best and how far more data would go."""
