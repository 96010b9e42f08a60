"""Step 2: examples to a trained model, by a loop over TensorFlow or JAX that resumes exactly where it was stopped."""
