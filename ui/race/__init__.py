"""Sections of the race page."""
