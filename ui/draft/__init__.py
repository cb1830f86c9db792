"""Sections of the draft page."""
