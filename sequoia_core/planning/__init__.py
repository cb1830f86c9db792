"""Planning without a model: hardware profiles, step times, predictions, and the recommended tree.

Within this package, each module imports only those listed before it:

    near_ties, profile_files, profile, step_time, plan, break_even, prediction, reasons
"""
