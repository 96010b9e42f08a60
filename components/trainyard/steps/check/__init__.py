"""Decides whether a scheduled run has anything to train."""
