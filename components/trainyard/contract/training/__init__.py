"""What a training and its planner agree on: gangs, devices' evidence, what an example costs, weights to begin with."""
