"""Sections of the replay page."""
