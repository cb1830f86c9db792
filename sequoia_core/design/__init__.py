"""Everything that needs no model and no torch: acceptance vectors, trees, hardware profiles, plans.

Each module imports, of this room, only the modules named:

    bootstrap           -
    conditions          -
    model_shapes        -
    scenarios           -
    tree                -
    tree_search         -
    tree_gallery        tree
    calibration         bootstrap
    acceptance_files    conditions, calibration
    growmap             tree
    profile_files       conditions
    profile_checks      tree
    profile             tree, profile_checks, profile_files
    step_time           tree, profile
    roofline            model_shapes, profile
    acceptance          bootstrap, conditions, calibration, acceptance_files
    replay              tree, acceptance
    optimal_trees       tree, tree_search, acceptance
    bounded_search      tree, tree_search, acceptance, optimal_trees
    what_if             acceptance_files, acceptance
    plain_trees         tree, tree_search, acceptance, optimal_trees
    planning            tree, profile, step_time, acceptance, replay, tree_search, optimal_trees, what_if
    prediction          bootstrap, tree, profile, step_time, acceptance, replay, optimal_trees, plain_trees, planning
    break_even          profile, acceptance, optimal_trees, planning
    slowdown            prediction
    observed            tree, acceptance
    regret              acceptance, optimal_trees
    node_facts          tree, acceptance, optimal_trees
    tree_comparison     tree, acceptance, optimal_trees, plain_trees
    growth              tree, bootstrap, acceptance, optimal_trees, plain_trees
    draft_choice        tree, profile, acceptance, planning, prediction
    step_limit          profile, planning
    shaping             tree, optimal_trees
    marginal_gains      shaping
    adaptive_shaping    tree, calibration, profile, step_time, acceptance, optimal_trees, planning, shaping
    growing_prediction  calibration, profile, step_time, prediction, shaping, adaptive_shaping
    tree_files          tree, growmap, acceptance, optimal_trees
"""
