"""Everything that needs no model and no torch: acceptance vectors, trees, hardware profiles, plans.

Each module imports, of this room, only the modules named:

    bootstrap         -
    conditions        -
    model_shapes      -
    near_ties         -
    scenarios         -
    tree              -
    tree_search       -
    calibration       conditions
    growmap           tree
    profile_schema    conditions
    profile_files     tree, profile_schema
    acceptance_files  conditions, calibration
    profile           profile_files
    acceptance        bootstrap, conditions, calibration, acceptance_files
    roofline          model_shapes, profile
    bench_profile     tree, profile_files, profile
    step_time         tree, profile_files, profile
    optimal_trees     bootstrap, tree, tree_search, acceptance
    replay            tree, acceptance
    matrix_files      acceptance_files, acceptance
    what_if           tree, acceptance_files, acceptance
    grown_trees       tree_search, acceptance, optimal_trees, replay, what_if
    plain_trees       tree, tree_search, acceptance, optimal_trees
    planning          bootstrap, tree, tree_search, profile, acceptance, step_time, optimal_trees, grown_trees
    tree_files        tree, growmap, acceptance, optimal_trees
    break_even        profile, step_time, acceptance, grown_trees, planning
    growth            bootstrap, tree, acceptance, optimal_trees, plain_trees
    prediction        bootstrap, tree, profile, acceptance, step_time, optimal_trees, replay, plain_trees, planning
    tree_comparison   tree, acceptance, optimal_trees, plain_trees
    draft_choice      tree, profile, acceptance, planning, prediction
"""
