"""What a model file holds, and what is odd about it, without running it."""
