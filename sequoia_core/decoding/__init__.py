"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only the modules named:

    plan                 -
    sampling             -
    rank_acceptance      sampling
    verifiers            sampling, rank_acceptance
    tree_policy          verifiers
    drafting             plan, sampling, verifiers, tree_policy
    walk                 sampling, verifiers
    explaining           verifiers, walk
    compiled_drafting    sampling, verifiers, tree_policy, drafting
    compiled_growing     plan, sampling, verifiers, tree_policy, drafting
    growing              plan, sampling, verifiers, drafting, compiled_growing
    spec_exec            verifiers, tree_policy, growing
    adaptive             verifiers, tree_policy, drafting, growing
    judging              plan, sampling, verifiers, drafting, walk, explaining
    record               walk, explaining
    assemble             sampling, verifiers, tree_policy, drafting, compiled_drafting, spec_exec, adaptive, judging
    loop                 sampling, verifiers, tree_policy, drafting, judging, record, assemble
"""  # noqa: E501
