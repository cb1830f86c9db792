"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only modules named before it:

    plan, cutting, sampling, residuals, rank_acceptance, verifiers, tree_policy, walk, explaining, pass_times,
    node_facts, drafting, judging, record, growing.expansion, growing.plain_index, growing.step_costs,
    growing.text_index, growing.running_lookup, growing.top_k_expansion, growing.marginal_gains, growing.plain_growing,
    growing.compiled_growing, growing.sampled_expansion, growing.recipes, growing.growing_tree, growing.policies,
    growing.drafter, gpu.phases, gpu.walk_by_rank, gpu.drafting, gpu.judging, assemble, loop, tree_kinds
"""
