"""What a model's answers are worth: each metric as a number and for the bootstrap, and those of the recipe itself."""
