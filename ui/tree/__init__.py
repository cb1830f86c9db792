"""Sections of the tree page."""
