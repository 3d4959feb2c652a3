"""The op vocabulary, the passes that rewrite it, the oracle that executes it, and its native compiler."""
