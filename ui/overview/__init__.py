"""Sections of the start page."""
