"""Trees grown per step: from the draft model, from text already seen, or from both."""
