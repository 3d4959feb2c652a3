"""Readers against hostile, odd and honest files."""
