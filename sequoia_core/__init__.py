"""Sequoia's engine: optimal token trees, lossless verification, decoding, measurement. No Streamlit, no plotting.

Rooms; each imports only from the rooms named, and inside a room modules follow the ladder in its own docstring. A test
enforces both.

    files           -
    native          -
    design          files
    models          files, native
    decoding        native, design, models
    studies         files, native, design, models, decoding
    sweeps          files, design, models, decoding, studies
    command_line    files, native, design, models, decoding, studies, sweeps

`files` reads carefully and writes whole. `design` needs no model and no torch: vectors, trees, profiles, plans.
`native` is compiled code and what calls it. `models` runs language
models. `decoding` drafts, verifies and commits. `studies` measure a running pair, `sweeps` many of them.

Names below are loaded on first use, so that a command that needs no model does not pay for torch.
"""

import os
from importlib import import_module

# How often a thread looks again for others before it sleeps, in PyTorch's parallel code and ours. The default, 300,000
# rounds, is up to 16 ms: where a browser or a server wants a core too, the waiting thread holds it and the awaited one
# stands in line. It is read once, when PyTorch is imported; a value that the user set stays.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

_HOME = {
    "AcceptanceVector": "design.acceptance",
    "AcceptanceMatrix": "design.acceptance",
    "Conditions": "design.conditions",
    "TokenTree": "design.tree",
    "node_scores": "design.optimal_trees",
    "expected_tokens": "design.optimal_trees",
    "expected_tokens_table": "design.optimal_trees",
    "optimal_tree": "design.optimal_trees",
    "HardwareProfile": "design.profile",
    "SpeedupSurface": "design.planning",
    "speedup_surface": "design.planning",
    "best_shape": "design.planning",
    "predicted_speedup": "design.prediction",
    "load_pair": "models.loading",
    "SamplingConfig": "decoding.sampling",
    "DecodeStep": "decoding.record",
    "SpecExecTree": "decoding.dynamic.spec_exec",
    "AdaptiveTree": "decoding.dynamic.adaptive",
    "HybridTree": "decoding.lookup.hybrid_tree",
    "LookupTree": "decoding.lookup.lookup_tree",
    "TextIndex": "decoding.lookup.text_index",
    "Calibration": "design.calibration",
    "decode": "decoding.loop",
    "autoregressive": "decoding.loop",
    "measure_acceptance": "studies.measure_acceptance",
    "measure_profile": "studies.measure_profile",
    "check_losslessness": "studies.losslessness",
    "acceptance_probability": "studies.node_enumeration",
    "acceptance_by_depth": "studies.step_counts",
    "acceptance_by_confidence": "studies.step_counts",
    "compare_verifiers": "studies.verifier_comparison",
    "measure_rejection": "studies.rejection_curves",
    "static_versus_real": "studies.prediction_check",
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
