"""What a run shows of acceptance, against the vector in use, and the tree that follows from it."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.learning import (
    FEWEST_TO_JUDGE,
    NewPlan,
    ObservedAcceptance,
    learned_vector,
    observe,
    plan_again,
    prior_weight,
)
from ui import predictions, session, tree_in_use
from ui.jobs import Job
from ui.runs import DecodeRequest
from ui.session_state import get, put

SOURCE = "the tree planned again with what the run showed"


def draw(job: Job, run: dict[str, Any]) -> None:
    """Draw acceptance by rank as far as the run has come; nothing where there is nothing to compare it with."""
    request: DecodeRequest = job.info
    if not run["steps"] or not isinstance(request.tree, TokenTree) or request.models != session.pair_spec():
        return
    wanted = predictions.conditions(request.temperature, request.top_p, request.verifier)
    vector = predictions.vector_for(wanted)
    if vector is None:
        return
    steps = list(run["steps"])  # the worker may add some meanwhile
    observed = observe((_tree(tuple(run["shapes"][step["shape"]])), step["path"]) for step in steps)
    st.markdown("**What this run shows of acceptance**")
    st.markdown(_verdict(observed, vector))
    st.markdown(_table(observed, vector))
    tree = _tree(tuple(run["shapes"][steps[-1]["shape"]]))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Plan again with what this run showed",
            icon=":material/school:",
            key="learned_plan",
            on_click=_plan,
            args=(job, tree, observed, vector),
            help=f"The vector in use counts as {prior_weight(vector):.0f} nodes of this run, as its prompts differ "
            "among themselves. Ranks that were never drafted keep its values.",
        )
        found = get("new_plan")
        if found is not None and found[0] == job.id:
            _draw_plan(job, found[1], tree)


@lru_cache(maxsize=64)
def _tree(parents: tuple[int, ...]) -> TokenTree:
    return TokenTree(np.array(parents))


def _plan(job: Job, tree: TokenTree, observed: ObservedAcceptance, vector: AcceptanceVector) -> None:
    """Plan again, and keep the plan for this run."""
    size, depth = job.info.steering.room
    learned = learned_vector(vector, observed)
    plan = plan_again(tree, learned, session.profile(), max_size=size, max_depth=depth)
    put("new_plan", (job.id, plan))


def _draw_plan(job: Job, plan: NewPlan, tree: TokenTree) -> None:
    """Say what the new tree is expected to bring, and offer it for the steps to come or for the next run."""
    held = job.info.steering
    if tree == plan.tree:
        used = held.switched_at is not None
        st.markdown(
            f"In use since step {held.switched_at + 1}: the text is the same, only the trees differ."
            if used
            else "The tree so far is still the best."
        )
        return
    # A speed is predicted only from a profile of this machine; one of another still chooses the shape.
    speed = f", and {plan.gain - 1:+.0%} speed" if not predictions.profile_faults() else ""
    st.markdown(
        f"Best for {predictions.profiled_machine()}: n = {plan.tree.size}, d = {plan.tree.depth}, "
        f"{plan.expected_tokens:.2f} tokens per step expected, the tree so far yields {plan.kept_tokens:.2f}{speed}."
    )
    if job.active:
        st.button(
            "Use it from the next step",
            icon=":material/swap_horiz:",
            key="learned_use",
            on_click=partial(held.use, plan.tree, SOURCE),
        )
    else:
        st.button(
            "Use it on every page",
            icon=":material/check:",
            key="learned_keep",
            on_click=partial(tree_in_use.use, plan.tree, SOURCE),
        )


def _table(observed: ObservedAcceptance, vector: AcceptanceVector) -> str:
    """Write acceptance by rank as a table in Markdown: drawn again with every look at a run, so it is to be cheap."""
    low, high = observed.interval()
    outside = observed.outside(vector)
    lines = ["| rank | vector in use | this run | 95 % interval | drafted |", "|--:|--:|--:|---|--:|"]
    for rank, rate in enumerate(observed.rates, start=1):
        expected = vector.probs[rank - 1] if rank <= len(vector) else 0.0
        between = f"{low[rank - 1]:.1%} to {high[rank - 1]:.1%}"
        said = ": the vector is outside" if rank in outside else ""
        lines.append(f"| {rank} | {expected:.1%} | {rate:.1%} | {between}{said} | {observed.drafted[rank - 1]} |")
    return "\n".join(lines)


def _verdict(observed: ObservedAcceptance, vector: AcceptanceVector) -> str:
    outside = observed.outside(vector)
    if outside:
        ranks = ", ".join(map(str, outside))
        words = "Ranks" if len(outside) > 1 else "Rank"
        return f":red[:material/report:] {words} {ranks}: the vector in use is outside what this run shows."
    judged = int(np.count_nonzero(observed.drafted >= FEWEST_TO_JUDGE))
    if not judged:
        return f"Too few nodes to judge: a rank counts once it was drafted {FEWEST_TO_JUDGE} times."
    return "The vector in use is inside the interval of every rank that was drafted often enough."
