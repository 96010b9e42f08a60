"""Processes: children that are forked, signals, memory and free ports."""
