"""Looks into folders of pictures, and tells which look alike."""
