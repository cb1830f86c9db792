"""Sequoia's engine: optimal token trees, lossless verification, decoding, measurement. No Streamlit, no plotting.

Rooms; each imports only from the rooms named, and inside a room modules follow the ladder in its own docstring. A test
enforces both.

    files           -
    native          -
    design          files
    models          files, native
    decoding        native, design, models
    studies         files, native, design, models, decoding
    sweeps          files, native, design, models, decoding, studies
    servers         files, design, studies
    command_line    files, native, design, models, decoding, studies, sweeps, servers

`files` reads carefully and writes whole. `design` needs no model and no torch: vectors, trees, profiles, plans.
`native` is compiled code and what calls it. `models` runs language
models. `decoding` drafts, verifies and commits. `studies` measure a running pair, `sweeps` many of them. `servers`
reads what other people's servers counted, plans and checks them.

Names below are loaded on first use, so that a command that needs no model does not pay for torch.
"""

from importlib import import_module

_HOME = {
    "load_pair": "models.loading",
    "ModelPair": "models.language_model",
    "decode": "decoding.loop",
    "autoregressive": "decoding.loop",
    "DecodeStep": "decoding.record",
    "SamplingConfig": "decoding.sampling",
    "TokenTree": "design.tree",
    "optimal_tree": "design.optimal_trees",
    "plan_tree": "design.planning",
    "speedup_surface": "design.planning",
    "predicted_speedup": "design.prediction",
    "AcceptanceVector": "design.acceptance",
    "measure_acceptance": "studies.measure_acceptance",
    "HardwareProfile": "design.profile",
    "measure_profile": "studies.measure_profile",
    "AdaptiveTree": "decoding.growing.policies",
    "HybridTree": "decoding.growing.policies",
    "LookupTree": "decoding.growing.policies",
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
