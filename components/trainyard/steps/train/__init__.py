"""Step 2: examples to a trained model, by a loop of its own over tf.distribute, resumed exactly where it was stopped."""
