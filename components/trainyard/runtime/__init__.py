"""One step's process, from its arguments to its record."""
