"""Steps on a GPU, in phases of fixed shape: `StaticDrafter` and `StaticJudge`, which `assemble` has in its tables."""
