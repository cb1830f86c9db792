"""Sections of the tree page that are too large to stand in it."""
