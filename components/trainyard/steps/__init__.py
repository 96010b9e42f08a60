"""The steps of a pipeline, a folder each. They share artifacts, never code."""
