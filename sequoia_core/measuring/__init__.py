"""Measurements of a loaded pair: acceptance, hardware profiles, races and benchmarks.

`cancel` is checked between passes. Once it is set, the functions return a result for the work completed so far, or
raise `Cancelled` if that is too little for a result.

Within this package, each module imports only those listed before it:

    first_difference, prompt_loop, race, target_text, ranks_along_text, measure_acceptance, run_summary,
    step_timers, step_rounds, measure_profile, bench
"""
