"""Core calls that pages repeat on every rerun, behind bounded caches; results are immutable."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core.decoding.tree_kinds import TREE_KINDS

if TYPE_CHECKING:
    import numpy as np

    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
    from sequoia_core.decoding.growing.growing_tree import GrowingTree
    from sequoia_core.design.bootstrap import Estimate
    from sequoia_core.design.break_even import BreakEven, Gains
    from sequoia_core.design.draft_choice import DraftPlan
    from sequoia_core.design.growth import Curve
    from sequoia_core.design.planning import BestShape, ShapeSpread, SpeedupSurface
    from sequoia_core.design.prediction import Prediction, WithoutDepth
    from sequoia_core.design.tree_comparison import Regret
    from sequoia_core.files.prompt_rows import Taken
    from ui.token_tree.two_ways import SupposedDraft

MAX_DEPTH = 24
MAX_SIZE = 2048  # SpecExec's budgets; Sequoia's trees have 64 to 128 nodes on a GPU, 768 with offloading
USUAL_SIZE = 1024  # of tables and plans; twice as far takes seconds where ranks rise and fall, so only for such a tree
BAND_SIZE = 256  # the largest size with a bootstrap interval: fifty tables of it take a second


@lru_cache(maxsize=16)
def _profiled(profile: HardwareProfile) -> str:
    return json.dumps(profile.to_json())


_HASH: dict[str | type[Any], Callable[[Any], Any]] = {
    "sequoia_core.design.acceptance.AcceptanceVector": lambda vector: vector.levels.tobytes(),
    "sequoia_core.design.profile.HardwareProfile": lambda profile: _profiled(profile),
    "sequoia_core.design.tree.TokenTree": lambda tree: tree.parents.tobytes(),
}


@lru_cache(maxsize=16)
def _measured(vector: AcceptanceVector) -> bytes:
    """Return a digest of all that a vector holds, to tell it from others."""
    calibration = vector.calibration
    arrays = [vector.probs, vector.prompt_sums, vector.prompt_trials]
    arrays += [*(vector.prompt_ranks or ()), *(vector.prompt_matched or ())]
    if (deeper := vector.by_depth) is not None:
        arrays += [deeper.probs, deeper.prompt_sums, deeper.prompt_trials, *(deeper.prompt_ranks or ())]
    if calibration is not None:
        arrays += [
            getattr(calibration, name) for name in ("counts", "accepted", "positions", "accepted_by_rank", "rows")
        ]
    held = [array for array in arrays if array is not None]
    told = vector.trials, vector.meta, vector.note, vector.holds_for, calibration and calibration.temperature
    shapes = repr(([array.shape for array in held], told)).encode()
    return blake2b(b"".join([shapes, *(array.tobytes() for array in held)])).digest()


def reach(size: int) -> int:
    """Return how far tables go where a tree of that size is looked at."""
    return USUAL_SIZE if size <= USUAL_SIZE else MAX_SIZE


# for what depends on the sample behind a vector, not only on its probabilities
_SAMPLE_HASH = {**_HASH, "sequoia_core.design.acceptance.AcceptanceVector": lambda vector: _measured(vector)}


@st.cache_resource(show_spinner=False)
def demo_dtype() -> str:
    """Return the dtype of the demo pair here (cached: files and CPU do not change while the app runs)."""
    from sequoia_core.models.default_dtype import default_dtype

    return default_dtype().dtype


@lru_cache(maxsize=16)  # asked for hundreds of times a page, which Streamlit's caches take a fifth of a millisecond for
def load_acceptance(path: str, modified: int) -> AcceptanceVector:
    """Read a vector's file; `modified` makes an edited file another one."""
    from sequoia_core import AcceptanceVector

    return AcceptanceVector.load(path)


@lru_cache(maxsize=16)
def load_profile(path: str, modified: int) -> HardwareProfile:
    """Read a profile's file; `modified` makes an edited file another one."""
    from sequoia_core import HardwareProfile

    return HardwareProfile.load(path)


@st.cache_data(show_spinner=False, max_entries=4)
def uploaded_prompts(data: bytes, name: str, column: str | None) -> Taken:
    """Return the prompts of an uploaded file."""
    from sequoia_core.files.prompt_files import taken_prompts

    return taken_prompts(data, name, column)


@st.cache_resource(show_spinner="Searching the best tree…", max_entries=64, hash_funcs=_HASH)
def best_tree(vector: AcceptanceVector, size: int, depth: int) -> TokenTree:
    from sequoia_core import optimal_tree

    return optimal_tree(vector, size=size, depth=depth)


@st.cache_resource(show_spinner="Computing expected tokens…", max_entries=32, hash_funcs=_HASH)
def tokens_table(vector: AcceptanceVector, largest: int = USUAL_SIZE) -> np.ndarray:
    """Return G(n, d), float64 [largest + 2, MAX_DEPTH + 1]; NaN where it is too much to search."""
    from sequoia_core.design.optimal_trees import table_within_reach

    return table_within_reach(vector, max_size=largest + 1, max_depth=MAX_DEPTH)


@st.cache_resource(show_spinner="Comparing shapes…", max_entries=32, hash_funcs=_HASH)
def growth_curves(vector: AcceptanceVector, depth: int, largest: int = USUAL_SIZE) -> dict[str, Curve]:
    """Return name -> (sizes, expected tokens) of the best tree at two depth limits and of plain shapes."""
    from sequoia_core.design import growth

    return growth.growth_curves(vector, tokens_table(vector, largest)[:-1], depth=depth)


@st.cache_resource(show_spinner="Resampling the measurement…", max_entries=8, hash_funcs=_SAMPLE_HASH)
def resampled_tables(vector: AcceptanceVector) -> np.ndarray | None:
    """Return G(n, d) for vectors the same measurement might have found, up to n = BAND_SIZE; None if none is known."""
    from sequoia_core.design.optimal_trees import bootstrap_tables

    return bootstrap_tables(vector, max_size=BAND_SIZE, max_depth=MAX_DEPTH)


@st.cache_resource(show_spinner="Planning for better and worse drafts…", max_entries=8, hash_funcs=_SAMPLE_HASH)
def supposed_drafts(vector: AcceptanceVector, profile: HardwareProfile) -> list[SupposedDraft]:
    from ui.token_tree.two_ways import supposed_drafts

    return supposed_drafts(vector, profile)


def growth_band(vector: AcceptanceVector, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return (sizes, low, high), the 95% interval of G(n, depth); None when nothing is known of the sample."""
    from sequoia_core.design import growth

    tables = resampled_tables(vector)
    return None if tables is None else growth.growth_band(tables, depth=depth)


@st.cache_resource(show_spinner=False, max_entries=16, hash_funcs=_SAMPLE_HASH)
def size_and_depth_spread(vector: AcceptanceVector, profile: HardwareProfile) -> ShapeSpread | None:
    """Return how sure the best shape is; None when nothing is known of the sample."""
    from sequoia_core.design import planning

    tables = resampled_tables(vector)
    return (
        None if tables is None else planning.size_and_depth_spread(vector, profile, tables[:, : profile.max_size + 1])
    )


@st.cache_resource(show_spinner=False, max_entries=64, hash_funcs=_SAMPLE_HASH)
def tokens_per_step(vector: AcceptanceVector, tree: TokenTree) -> Estimate:
    """Return what a step with this very tree is expected to yield: the number that speedups are made of."""
    from sequoia_core.design.prediction import tokens_estimate

    return tokens_estimate(tree, vector)


@st.cache_resource(show_spinner=False, max_entries=32, hash_funcs=_HASH)
def regret(vectors: tuple[AcceptanceVector, ...], size: int, depth: int) -> Regret:
    """Return what each vector's tree loses under the others."""
    from sequoia_core.design.tree_comparison import regret_matrix

    return regret_matrix(vectors, size=size, depth=depth)


@st.cache_resource(show_spinner="Planning for this hardware…", max_entries=32, hash_funcs=_SAMPLE_HASH)
def planned(
    vector: AcceptanceVector, profile: HardwareProfile, paper: bool = False
) -> tuple[SpeedupSurface, BestShape, TokenTree]:
    """Return the predicted speedup surface, its best shape and that tree; by the paper's formula if asked to."""
    from sequoia_core.design.planning import plan_on, surface_within_reach
    from sequoia_core.design.prediction import shape_of

    surface = surface_within_reach(vector, profile, max_size=USUAL_SIZE, paper=paper)
    best, tree = plan_on(surface, vector, profile)
    return surface, best if paper else shape_of(tree, vector, profile), tree


@st.cache_resource(show_spinner="Planning without depth…", max_entries=16, hash_funcs=_SAMPLE_HASH)
def without_depth(vector: AcceptanceVector, profile: HardwareProfile) -> WithoutDepth | None:
    """Return what planning by the first depth alone would lose; None for a draft without depths."""
    from sequoia_core.design import prediction

    return prediction.without_depth(planned(vector, profile)[2], vector, profile, max_size=USUAL_SIZE)


@st.cache_resource(show_spinner=False, max_entries=64, hash_funcs=_SAMPLE_HASH)
def prediction(
    vector: AcceptanceVector,
    profile: HardwareProfile,
    tree: TokenTree,
    prompts: int | None = None,
    context: float | None = None,
) -> Prediction:
    """Return what decoding so many prompts with this very tree is expected to do, with intervals."""
    from sequoia_core.design.prediction import predict

    return predict(tree, vector, profile, prompts=prompts, context=context)


@st.cache_resource(show_spinner="Trying out trees…", max_entries=16, hash_funcs=_SAMPLE_HASH)
def policy(
    kind: str, size: int, depth: int, vector: AcceptanceVector | None, profile: HardwareProfile | None
) -> GrowingTree:
    """Return the policy of one of `TREE_KINDS`; some have a budget, the others are bounded by costs."""
    chosen = TREE_KINDS[kind]
    if chosen.budgeted:
        return chosen.make(max_size=size, max_depth=depth)
    return chosen.make(vector, profile)


@st.cache_resource(show_spinner="Trying out trees…", max_entries=16, hash_funcs=_SAMPLE_HASH)
def policy_prediction(
    kind: str, size: int, depth: int, vector: AcceptanceVector, profile: HardwareProfile, prompts: int | None = None
) -> Prediction:
    """Return what decoding with such trees is expected to do, with intervals."""
    from sequoia_core.decoding.growing.growing_tree import predict_policy

    return predict_policy(policy(kind, size, depth, vector, profile), vector, profile, prompts=prompts)


@st.cache_resource(show_spinner=False, max_entries=64, hash_funcs=_SAMPLE_HASH)
def prompts_for(vector: AcceptanceVector, tree: TokenTree) -> int | None:
    """Return how many prompts a calibration takes for tokens per step within 5%; None where nothing is known."""
    from sequoia_core.design.prediction import prompts_for

    return prompts_for(tree, vector)


@st.cache_resource(show_spinner="Comparing drafts…", max_entries=8, hash_funcs=_SAMPLE_HASH)
def drafts(names: tuple[str, ...], measured: tuple[tuple[AcceptanceVector, HardwareProfile], ...]) -> list[DraftPlan]:
    """Return what each draft would do with its best tree, the fastest first."""
    from sequoia_core.design.draft_choice import compare_drafts

    return compare_drafts(dict(zip(names, measured, strict=True)))


@st.cache_resource(show_spinner="Looking for break-even…", max_entries=16, hash_funcs=_SAMPLE_HASH)
def break_even(vector: AcceptanceVector, profile: HardwareProfile) -> tuple[dict[str, BreakEven], Gains]:
    """Return where speculation breaks even, and what a tenth better acceptance, drafting or verifying would bring."""
    from sequoia_core.design import break_even

    return break_even.break_even(vector, profile), break_even.gains(vector, profile)
