"""Text to token ids and back, the streams of decoded text, and chat templates."""
