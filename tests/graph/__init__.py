"""What the ops mean, and that the passes keep it."""
