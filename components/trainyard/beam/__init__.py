"""Beam for the steps: runners, their jobs, and tasks for worker processes."""
