"""What a model is compared with: one answer to everything, and boosted trees; and which columns it rests on."""
