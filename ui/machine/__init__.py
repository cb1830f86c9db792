"""Sections of the machine page that are too large to stand in it."""
