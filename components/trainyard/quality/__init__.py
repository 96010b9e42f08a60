"""Profiles of data before any training, without TensorFlow or Beam."""
