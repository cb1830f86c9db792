"""What is measured on a running pair.

Each module imports, of this room, only the modules named:

    measure_profile        -
    node_enumeration       -
    prompt_loop            -
    step_counts            -
    losslessness           prompt_loop
    measure_acceptance     prompt_loop
    race                   measure_acceptance, measure_profile, prompt_loop
    rejection_curves       measure_acceptance, prompt_loop
    verifier_comparison    measure_acceptance, prompt_loop
    prediction_check       measure_acceptance, prompt_loop, step_counts, verifier_comparison
"""
