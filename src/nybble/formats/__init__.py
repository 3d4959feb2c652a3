"""Readers of model files. Everything here treats its input as hostile."""
