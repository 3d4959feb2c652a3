"""One file per architecture: what a checkpoint's configuration and tensors mean as a graph."""
