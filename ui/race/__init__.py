"""The race."""
