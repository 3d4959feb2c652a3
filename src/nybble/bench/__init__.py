"""Measuring models and ops, beside what this machine could do at best and what other engines do."""
