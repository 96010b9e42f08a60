"""What a recipe says of the training: the schedule, the optimizer, how images are changed, or a program of its own."""
