"""Trees that follow the draft: how they are shaped, priced, predicted, drafted level by level."""
