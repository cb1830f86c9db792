"""Recorded runs: storage, files, list and comparison."""
