"""Draft heads, which read a target's hidden states: their files, their layers, their sessions."""
