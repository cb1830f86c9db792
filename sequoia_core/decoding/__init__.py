"""Draft a tree, verify it losslessly, and commit the accepted path.

Within this package, each module imports only those listed before it:

    plan, cutting, residuals, node_facts, draws, row_operations, sampling, rank_acceptance, verifiers, tree_policy,
    tree_kinds, walk, explaining, pass_times, drafting, judging, record, assemble, loop
"""
