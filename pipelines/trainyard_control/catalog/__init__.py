"""Pipelines: plain KFP definitions with no hardware in them."""
