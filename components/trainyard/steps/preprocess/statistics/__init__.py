"""What preprocess finds out about data: statistics and quality."""
