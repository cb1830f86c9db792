"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only the modules named:

    plan                 -
    sampling             -
    rank_acceptance      sampling
    verifiers            sampling
    drafting             plan, sampling, verifiers
    walk                 sampling, verifiers
    compiled_drafting    plan, sampling, verifiers, drafting
    judging              plan, sampling, verifiers, drafting, walk
    record               walk
    assemble             plan, sampling, verifiers, drafting, compiled_drafting, judging
    loop                 sampling, verifiers, record, assemble
"""
