"""What is measured on a running pair.

Each module imports, of this room, only the modules named:

    measure_bounds         -
    bound_of_passes        measure_bounds
    measure_profile        -
    node_enumeration       -
    prompt_loop            -
    step_counts            -
    run_summary            -
    spread                 -
    losslessness           prompt_loop
    ranks_along_text       prompt_loop
    measure_acceptance     prompt_loop, ranks_along_text
    race                   prompt_loop
    bench                  measure_acceptance, measure_profile, prompt_loop, race
    rejection_curves       measure_acceptance, prompt_loop, ranks_along_text
    verifier_comparison    measure_acceptance, prompt_loop, ranks_along_text
    prediction_check       measure_acceptance, prompt_loop, ranks_along_text, step_counts, verifier_comparison
"""
