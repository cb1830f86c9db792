"""Sections of the hardware page that are too large to stand in it."""
