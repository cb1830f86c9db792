"""Sections of the machine page."""
