"""Measurements on the current pair, with their forms, and the badge that shows whether they were made."""
