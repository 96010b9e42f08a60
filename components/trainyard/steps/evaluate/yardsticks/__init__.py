"""What a model is held against: one answer to everything, and boosted trees; and which columns it rests on."""
