"""Sections of the compare page."""
