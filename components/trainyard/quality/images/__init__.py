"""Looks into folders of images, and tells which look alike."""
