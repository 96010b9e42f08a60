"""Profiles tables: cells, columns and suspicious values."""
