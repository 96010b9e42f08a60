"""A page that runs the exported model in a browser."""
