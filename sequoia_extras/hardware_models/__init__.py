"""Profiles for machines that are not at hand: a roofline model of shapes on devices, scenarios, and llama-bench times.

Within this package, each module imports only those listed before it:

    bench_profile, model_shapes, roofline, scenarios, shape_profiles
"""

PROVIDES = {"profile_readers": ["bench_profile:profile_from_bench"], "model_shapes": ["shape_profiles"]}
