"""Sections of the runs page."""
