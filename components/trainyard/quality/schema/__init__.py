"""Schemas of data: drafted from some, compared with others."""
