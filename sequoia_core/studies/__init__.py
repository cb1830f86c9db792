"""What is measured on a running pair.

Each module imports, of this room, only the modules named:

    measure_bounds       -
    lookup_replay        -
    node_enumeration     -
    prompt_loop          -
    run_summary          -
    spread               -
    step_counts          -
    step_timers          -
    bound_of_passes      measure_bounds
    prediction_on_texts  lookup_replay
    losslessness         prompt_loop
    measure_profile      step_timers
    race                 prompt_loop
    ranks_along_text     prompt_loop
    measure_acceptance   prompt_loop, ranks_along_text
    server_check         prompt_loop, race
    bench                measure_profile, prompt_loop, race, measure_acceptance
    rejection_curves     prompt_loop, ranks_along_text, measure_acceptance
    verifier_comparison  prompt_loop, ranks_along_text, measure_acceptance
    measure_growth       prompt_loop, measure_acceptance, verifier_comparison
    prediction_check     prompt_loop, step_counts, ranks_along_text, measure_acceptance, verifier_comparison
"""
