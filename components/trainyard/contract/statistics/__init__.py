"""What is known of some data, and how far two of them differ."""
