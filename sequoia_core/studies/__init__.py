"""What is measured on a running pair.

Each module imports, of this room, only the modules named:

    first_difference     -
    measure_bounds       -
    node_enumeration     -
    prompt_loop          -
    run_summary          -
    step_counts          -
    step_timers          -
    lookup_replay        prompt_loop
    losslessness         first_difference, prompt_loop
    measure_profile      step_timers
    race                 prompt_loop
    ranks_along_text     prompt_loop
    measure_acceptance   prompt_loop, ranks_along_text
    bench                first_difference, measure_profile, prompt_loop, race, measure_acceptance
    rejection_curves     prompt_loop, ranks_along_text, measure_acceptance
    verifier_comparison  prompt_loop, ranks_along_text, measure_acceptance
    measure_growth       prompt_loop, measure_acceptance, verifier_comparison
    prediction_check     prompt_loop, step_counts, ranks_along_text, measure_acceptance, verifier_comparison
"""
