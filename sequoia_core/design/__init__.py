"""Everything that needs no model and no torch: acceptance vectors, trees, hardware profiles, plans.

Each module imports, of this room, only modules named before it:

    bootstrap, conditions, model_shapes, near_ties, scenarios, tree, tree_search, calibration, growmap,
    profile_schema, profile_files, acceptance_schema, acceptance_files, acceptance_matrix, profile, acceptance,
    roofline, bench_profile, step_time, optimal_trees, replay, matrix_files, what_if, grown_trees, plain_trees,
    planning, tree_files, break_even, growth, prediction, tree_comparison, draft_choice
"""
