"""Recorded runs: kept, saved, listed, compared."""
