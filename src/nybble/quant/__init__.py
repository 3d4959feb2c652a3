"""Block-quantised storage: what the bytes of a weight mean. Knows nothing of files or graphs."""
