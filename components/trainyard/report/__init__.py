"""The record and the report of a run."""
