"""Sections of the acceptance page that are too large to stand in it."""
