"""Raw columns to the model's features, by tf.Transform."""
