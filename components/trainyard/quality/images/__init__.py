"""Profiles folders of images, and finds near duplicates."""
