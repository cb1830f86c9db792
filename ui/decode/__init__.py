"""Sections of the live page."""
