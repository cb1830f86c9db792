"""The state of a browser session and the values derived from it."""
