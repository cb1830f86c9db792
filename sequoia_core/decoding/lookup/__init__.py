"""Trees from text already seen: the index of what followed which context, and the policy that drafts from it."""
