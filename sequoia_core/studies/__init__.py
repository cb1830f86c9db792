"""What is measured on a running pair.

Each module imports, of this room, only the modules named:

    losslessness           -
    measure_acceptance     -
    measure_profile        -
    step_counts            -
    run_summary            -
    spread                 -
    race                   measure_acceptance, measure_profile
    rejection_curves       measure_acceptance
    verifier_comparison    measure_acceptance
    prediction_check       measure_acceptance, step_counts, verifier_comparison
"""
