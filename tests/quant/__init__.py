"""Decoders and packing rules against the gguf package."""
