"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only the modules named:

    growing.expansion           -
    plan                        -
    growing.plain_index         -
    cutting                     -
    sampling                    cutting
    residuals                   -
    growing.step_costs          growing.expansion
    growing.adaptive_expansion  growing.expansion, growing.step_costs
    growing.marginal_gains      growing.expansion
    rank_acceptance             residuals, sampling
    growing.text_index          growing.plain_index
    growing.growing_prediction  growing.expansion, growing.adaptive_expansion
    verifiers                   sampling, rank_acceptance
    tree_policy                 verifiers
    walk                        sampling, verifiers
    walk_by_rank                plan, residuals, sampling
    drafting                    plan, sampling, growing.marginal_gains, growing.text_index, verifiers, tree_policy
    explaining                  cutting, sampling, rank_acceptance, verifiers, walk
    static_drafting             plan, sampling, verifiers, tree_policy, drafting
    compiled_drafting           sampling, verifiers, tree_policy, drafting
    growing.hybrid_expansion    growing.expansion, growing.text_index
    growing.in_turn_expansion   growing.expansion, growing.hybrid_expansion
    growing.compiled_growing    growing.expansion, plan, sampling, verifiers, tree_policy, drafting, growing.hybrid_expansion, growing.in_turn_expansion
    judging                     sampling, verifiers, walk, drafting, explaining
    static_judging              plan, sampling, verifiers, walk, walk_by_rank, drafting, judging
    record                      growing.marginal_gains, growing.text_index, walk, explaining
    pass_times                  sampling
    growing.lookup_tree         growing.expansion, growing.step_costs, plan, growing.adaptive_expansion, growing.text_index, drafting, pass_times
    growing.growing             growing.expansion, growing.step_costs, plan, sampling, growing.marginal_gains, growing.growing_prediction, verifiers, tree_policy, drafting, growing.in_turn_expansion, growing.compiled_growing
    growing.adaptive            growing.expansion, growing.step_costs, growing.adaptive_expansion, verifiers, tree_policy, drafting, growing.growing
    growing.spec_exec           growing.expansion, verifiers, tree_policy, growing.growing
    growing.hybrid_tree         growing.step_costs, growing.adaptive_expansion, verifiers, tree_policy, drafting, growing.growing, growing.adaptive, growing.text_index, growing.hybrid_expansion, growing.in_turn_expansion
    assemble                    sampling, verifiers, tree_policy, drafting, compiled_drafting, static_drafting, judging, static_judging, growing.lookup_tree, growing.hybrid_tree, growing.adaptive, growing.spec_exec
    loop                        sampling, verifiers, tree_policy, drafting, judging, record, assemble
"""  # noqa: E501
