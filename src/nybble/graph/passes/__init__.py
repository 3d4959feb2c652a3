"""Rewrites of a graph: each file is one pure function Graph -> Graph that keeps what the graph computes."""
