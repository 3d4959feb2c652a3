"""Models written in another format than they came in."""
