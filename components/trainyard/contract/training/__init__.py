"""The contract between a training and its planner: gangs, devices, costs per example, initial weights."""
