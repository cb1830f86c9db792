"""Robustness evidence in the app: records, what they say in words, the work that finds them, how they are drawn."""
