"""Sections of the server page."""
