"""Whether a scheduled run has anything to train."""
