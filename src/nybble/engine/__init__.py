"""Loaded models, sequences, sampling, generation and chats."""
