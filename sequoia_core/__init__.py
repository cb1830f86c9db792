"""Sequoia's engine: optimal token trees, lossless verification, decoding, measurement. No Streamlit, no plotting.

The ladder (each module imports only from the ones named; a test enforces it):

    files, faults, tree, search     -
    native                          -
    model_names, conditions         -
    parquet_pages                   -
    rows                            native
    sampling                        rows
    vector_files                    files, conditions
    prompts                         files, faults, parquet_pages
    acceptance                      files, conditions, vector_files
    variations                      acceptance
    construction                    acceptance, tree, search
    formats                         files, acceptance, tree, construction
    fused                           -
    amx_llama                       native, rows
    models                          faults, amx_llama, fused
    checkpoint                      files, faults, model_names
    loading                         model_names, models, checkpoint
    prefill                         models
    hardware                        files, native, tree, models, prefill
    planning                        acceptance, tree, construction, hardware
    verification                    tree, sampling
    engine                          tree, rows, sampling, verification, models, prefill
    lossless                        tree, sampling, verification, models, prefill, engine
    ranks                           sampling
    measurement                     acceptance, conditions, sampling, ranks, models, prefill, engine
    outcomes                        acceptance, tree, engine
    estimates                       -
    rejection                       acceptance, sampling, estimates, ranks, models, measurement
    robustness                      tree, sampling, estimates, ranks, models, engine, measurement
    static_check                    all but checkpoint, loading, benchmark, cli
    benchmark                       all but cli
    cli                             all

Names below are loaded on first use, so that a command that needs no model does not pay for torch.
"""

from importlib import import_module

_HOME = {
    "AcceptanceVector": "acceptance",
    "AcceptanceMatrix": "acceptance",
    "Conditions": "conditions",
    "TokenTree": "tree",
    "SamplingConfig": "sampling",
    "node_scores": "construction",
    "expected_tokens": "construction",
    "expected_tokens_table": "construction",
    "optimal_tree": "construction",
    "HardwareProfile": "hardware",
    "measure_profile": "hardware",
    "SpeedupSurface": "planning",
    "speedup_surface": "planning",
    "best_shape": "planning",
    "predicted_speedup": "planning",
    "load_pair": "loading",
    "DecodeStep": "engine",
    "decode": "engine",
    "autoregressive": "engine",
    "measure_acceptance": "measurement",
    "check_losslessness": "lossless",
    "acceptance_probability": "lossless",
    "acceptance_by_depth": "outcomes",
    "acceptance_by_confidence": "outcomes",
    "compare_verifiers": "robustness",
    "measure_rejection": "rejection",
    "static_versus_real": "static_check",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
