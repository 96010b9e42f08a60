"""The engine that trains with JAX."""
