"""What the exit code of ``nybble`` says."""

SUCCESS = 0
FAILURE = 1
USAGE = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells say it."""
