"""Sections of the server page, which requires the optional package `servers`."""
