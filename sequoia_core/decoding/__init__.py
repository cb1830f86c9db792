"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only the modules named:

    dynamic.expansion           -
    plan                        -
    gpu.phases                  -
    lookup.plain_index          -
    cutting                     -
    sampling                    cutting
    residuals                   -
    dynamic.step_costs          dynamic.expansion
    dynamic.adaptive_expansion  dynamic.expansion, dynamic.step_costs
    dynamic.marginal_gains      dynamic.expansion
    rank_acceptance             residuals, sampling
    gpu.walk_by_rank            plan, residuals, sampling
    lookup.text_index           lookup.plain_index
    dynamic.growing_prediction  dynamic.expansion, dynamic.adaptive_expansion
    verifiers                   sampling, rank_acceptance
    tree_policy                 verifiers
    walk                        sampling, verifiers
    drafting                    plan, sampling, dynamic.marginal_gains, lookup.text_index, verifiers, tree_policy
    explaining                  cutting, sampling, rank_acceptance, verifiers, walk
    gpu.drafting                plan, sampling, verifiers, tree_policy, drafting, gpu.phases
    compiled_drafting           sampling, verifiers, tree_policy, drafting
    lookup.hybrid_expansion     dynamic.expansion, lookup.text_index
    lookup.in_turn_expansion    dynamic.expansion, lookup.hybrid_expansion
    dynamic.compiled_growing    dynamic.expansion, plan, sampling, verifiers, tree_policy, drafting, lookup.hybrid_expansion, lookup.in_turn_expansion
    judging                     sampling, verifiers, walk, drafting, explaining
    gpu.judging                 plan, sampling, verifiers, walk, drafting, judging, gpu.phases, gpu.walk_by_rank
    record                      dynamic.marginal_gains, lookup.text_index, walk, explaining
    pass_times                  sampling
    lookup.lookup_tree          dynamic.expansion, dynamic.step_costs, plan, dynamic.adaptive_expansion, lookup.text_index, drafting, pass_times
    dynamic.growing             dynamic.expansion, dynamic.step_costs, plan, sampling, dynamic.marginal_gains, dynamic.growing_prediction, verifiers, tree_policy, drafting, lookup.in_turn_expansion, dynamic.compiled_growing
    dynamic.adaptive            dynamic.expansion, dynamic.step_costs, dynamic.adaptive_expansion, verifiers, tree_policy, drafting, dynamic.growing
    dynamic.spec_exec           dynamic.expansion, verifiers, tree_policy, dynamic.growing
    lookup.hybrid_tree          dynamic.step_costs, dynamic.adaptive_expansion, verifiers, tree_policy, drafting, dynamic.growing, dynamic.adaptive, lookup.text_index, lookup.hybrid_expansion, lookup.in_turn_expansion
    assemble                    sampling, verifiers, tree_policy, drafting, compiled_drafting, judging, gpu.drafting, gpu.judging, gpu.phases, lookup.lookup_tree, lookup.hybrid_tree, dynamic.adaptive, dynamic.spec_exec
    loop                        sampling, verifiers, tree_policy, drafting, judging, record, assemble
"""  # noqa: E501
