"""Looks into tables: their cells, columns and what is odd about them."""
