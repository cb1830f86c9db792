"""Sections of the race page, and its job."""
