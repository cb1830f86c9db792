"""Sections of the overview that are too large to stand in it."""
