"""Sequoia's engine: optimal token trees, lossless verification, decoding and measurement. It imports no app libraries.

Each package imports only the packages listed next to it. Within a package, each module imports only those listed
before it in the package's docstring. A test enforces both rules.

    files           -
    acceptance      files
    trees           files, acceptance
    planning        files, acceptance, trees
    models          files, planning
    decoding        files, acceptance, trees, planning, models
    measuring       files, acceptance, trees, planning, models, decoding
    command_line    files, acceptance, trees, planning, models, decoding, measuring

`files` validates input and writes files atomically. `acceptance`, `trees` and `planning` need neither models nor
PyTorch. `models` runs language models. `decoding` drafts, verifies and commits tokens. `measuring` measures a loaded
pair. Optional capabilities are in `sequoia_extras`, which is never imported here.

Public names are imported on first use, so that commands that need no model do not import PyTorch.
"""

from importlib import import_module

_MODULES = {
    "load_pair": "models.loading",
    "ModelPair": "models.language_model",
    "decode": "decoding.loop",
    "autoregressive": "decoding.loop",
    "DecodeStep": "decoding.record",
    "SamplingConfig": "decoding.sampling",
    "TokenTree": "trees.tree",
    "optimal_tree": "trees.optimal",
    "plan_tree": "planning.plan",
    "speedup_surface": "planning.plan",
    "predicted_speedup": "planning.prediction",
    "AcceptanceVector": "acceptance.vector",
    "measure_acceptance": "measuring.measure_acceptance",
    "HardwareProfile": "planning.profile",
    "measure_profile": "measuring.measure_profile",
}
_MOVED_NAMES = {"AdaptiveTree", "HybridTree", "LookupTree"}  # names moved to sequoia_extras.dynamic_trees
__all__ = sorted(_MODULES)


def __getattr__(name: str):
    if name in _MOVED_NAMES:
        raise ImportError(f"{name} has moved; use: from sequoia_extras.dynamic_trees import {name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        from .files.libraries import missing_module_message

        raise ModuleNotFoundError(missing_module_message(error, name), name=error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
