"""Networks by name: each maps a dict of the data's features to float32 logits, or to one number for regression."""
