"""From the name of a model to a file on this machine."""
