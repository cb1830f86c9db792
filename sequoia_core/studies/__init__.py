"""What is measured on a running pair.

`cancel` is looked at between passes: the result is made of what is complete by then, or `Cancelled` says that it is too
little.

Each module imports, of this room, only modules named before it:

    first_difference, head_wiring, measure_bounds, node_enumeration, prompt_loop, run_summary, step_counts, step_timers,
    lookup_replay, losslessness, measure_profile, race, ranks_along_text, measure_acceptance, bench, rejection_curves,
    verifier_comparison, measure_growth, prediction_check
"""
