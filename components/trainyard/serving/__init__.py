"""Answers HTTP requests with a pushed model, as TensorFlow Serving and the Open Inference Protocol do."""
