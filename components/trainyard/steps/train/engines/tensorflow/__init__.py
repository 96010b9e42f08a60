"""The engine that trains with TensorFlow."""
