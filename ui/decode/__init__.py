"""Sections of the live page that are too large to stand in it."""
