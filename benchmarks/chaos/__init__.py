"""Runs of this machine under random faults, each compared with the undisturbed run."""
