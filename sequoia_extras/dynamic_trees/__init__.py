"""Trees chosen at every step: SpecExec, beam, adaptive, lookup and hybrid trees, and their drafter.

Within this package, each module imports only those listed before it:

    expansion, step_costs, index_memory, plain_index, text_index, lookup_replay, running_lookup, top_k_expansion,
    compiled_growing, marginal_gains, plain_growing, sampled_expansion, recipes, beams, engine_settings, growing_tree,
    drafter, policies, growth_timer, tree_kinds, commands
"""

PROVIDES = {
    "growth_timers": ["growth_timer:GrowthTimer"],
    "tree_kinds": ["tree_kinds:DYNAMIC_KINDS"],
    "commands": ["commands"],
    "drafters": ["drafter:GrowingDrafter"],
}
__all__ = ["AdaptiveTree", "HybridTree", "LookupTree"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use, because it imports torch.
    from . import policies

    return getattr(policies, name)
