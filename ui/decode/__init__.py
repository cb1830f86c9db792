"""Sections of the decode page that are too large to stand in it."""
