"""Drafting a tree, verifying it losslessly, committing the accepted path.

Each module imports, of this room, only the modules named:

    plan                        -
    cutting                     -
    sampling                    cutting
    residuals                   -
    rank_acceptance             sampling, residuals
    verifiers                   sampling, rank_acceptance
    tree_policy                 verifiers
    walk                        sampling, verifiers
    explaining                  cutting, sampling, rank_acceptance, verifiers, walk
    pass_times                  sampling
    node_facts                  -
    drafting                    plan, sampling, verifiers, tree_policy, node_facts
    compiled_drafting           sampling, verifiers, tree_policy, drafting
    judging                     sampling, verifiers, walk, explaining, drafting
    record                      walk, explaining, node_facts
    growing.expansion           -
    growing.plain_index         -
    growing.step_costs          growing.expansion
    growing.marginal_gains      node_facts, growing.expansion
    growing.text_index          node_facts, growing.plain_index
    growing.running_lookup      growing.expansion, growing.text_index
    growing.plain_growing       plan, sampling, verifiers, drafting, growing.expansion
    growing.top_k_expansion     growing.expansion, growing.running_lookup
    growing.compiled_growing    plan, sampling, verifiers, drafting, growing.expansion, growing.text_index, growing.running_lookup, growing.top_k_expansion
    growing.sampled_expansion   growing.expansion, growing.running_lookup, growing.top_k_expansion
    growing.recipes             growing.expansion, growing.step_costs, growing.running_lookup, growing.top_k_expansion, growing.sampled_expansion
    growing.growing_prediction  growing.expansion, growing.recipes
    growing.growing_tree        verifiers, tree_policy, growing.expansion, growing.step_costs, growing.text_index, growing.running_lookup, growing.top_k_expansion, growing.recipes, growing.growing_prediction
    growing.lookup_tree         pass_times, growing.step_costs, growing.text_index, growing.recipes, growing.growing_tree
    growing.adaptive            verifiers, growing.recipes, growing.growing_tree
    growing.spec_exec           growing.growing_tree
    growing.hybrid              growing.text_index, growing.recipes, growing.growing_tree
    growing.drafter             sampling, verifiers, tree_policy, node_facts, drafting, growing.expansion, growing.step_costs, growing.marginal_gains, growing.running_lookup, growing.plain_growing, growing.compiled_growing, growing.growing_tree
    gpu.phases                  -
    gpu.walk_by_rank            plan, sampling, residuals
    gpu.drafting                plan, sampling, verifiers, tree_policy, drafting, gpu.phases
    gpu.judging                 plan, sampling, verifiers, walk, drafting, judging, gpu.phases, gpu.walk_by_rank
    assemble                    sampling, verifiers, tree_policy, drafting, compiled_drafting, judging, gpu.phases, gpu.drafting, gpu.judging, growing.drafter
    loop                        sampling, verifiers, tree_policy, drafting, judging, record, assemble
    tree_kinds                  growing.growing_tree
"""  # noqa: E501
