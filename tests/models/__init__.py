"""Architectures against transformers, and configurations against hostile files."""
