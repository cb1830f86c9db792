"""Sweeps: many pairs, ways of sampling and kinds of text measured prompt by prompt, on one machine or many."""
