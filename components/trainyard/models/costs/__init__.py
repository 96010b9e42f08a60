"""What a network costs: operations, memory, an answer and a training step in time; and the profiles of all names."""
