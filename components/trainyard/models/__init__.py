"""Named networks: each maps a dict of features to float32 logits, or to numbers for a regression."""
