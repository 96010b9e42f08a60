"""The process of a step, from its arguments to its failure record."""
