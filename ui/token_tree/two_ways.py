"""One answer decoded in two ways: plain, and with a tree; and how its pace follows the quality of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from ui.token_tree import CSS, drawn_shape, read, to_wire, whole_shapes

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree

MISSES = (3.0, 2.5, 2.0, 1.7, 1.4, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # × those measured
MAX_SIZE = 32  # nodes, so that they can be told apart
HTML = read("two_ways.html")
PARTS = ("two_ways.js", "film.js", "clock.js", "shapes.js", "drawing.js", "words.js")
SCRIPT = "\n".join(map(read, PARTS))  # one module
STYLE = CSS + read("two_ways.css")
_COMPONENT = st.components.v2.component("sequoia_two_ways", html=HTML, css=STYLE, js=SCRIPT)


@dataclass(frozen=True, slots=True)
class SupposedDraft:
    """What a draft of another quality would bring: its planned tree, tokens per step and speedup."""

    first: float  # chance that the first guess is right
    tree: TokenTree
    chance: list[float]  # that a node is reached [n]
    tokens: float  # per step
    speedup: float
    measured: bool


def supposed_drafts(vector: AcceptanceVector, profile: HardwareProfile) -> list[SupposedDraft]:
    """Plan for drafts that miss more or less often than measured, from the worst to the best."""
    from sequoia_core.design.optimal_trees import node_scores
    from sequoia_core.design.planning import plan_tree
    from sequoia_core.design.prediction import predict
    from sequoia_core.design.what_if import edited

    drafts = []
    for factor in MISSES:
        probs = vector.probs * factor
        probs[0] = 1.0 - factor * (1.0 - vector.probs[0])
        if probs[0] < 0.05 or probs.sum() > 1.0 + 1e-9:
            continue
        supposed = vector if factor == 1.0 else edited(vector, probs)
        tree = plan_tree(supposed, profile, max_size=MAX_SIZE)
        found = predict(tree, supposed, profile)
        drafts.append(
            SupposedDraft(
                float(probs[0]),
                tree,
                node_scores(tree, supposed).tolist(),
                found.tokens_per_step.value,
                found.speedup.value,
                factor == 1.0,
            )
        )
    return drafts


def two_ways(told: Mapping[str, Any], film: Mapping[str, Any] | None, *, key: str) -> None:
    """Play one answer decoded in two ways, as `about` describes it, after the film of the whole chain if there is one.

    Args:
        told: empty where only the film is known.
        film: frames of `ui.overview.film`, how the chain ended and what it decodes.
    """
    _COMPONENT(key=key, data=to_wire({**told, "film": film}))


def about(run: Mapping[str, Any], drafts: Sequence[SupposedDraft], *, label: str) -> dict[str, Any]:
    """Describe a greedy run beside plain decoding of the same text, for both to be played in true relative speed.

    Args:
        run: with its baseline, as `ui.runs.runs` describes it.
        drafts: for the slider, from the worst to the best; empty hides it.
        label: what made the run, in a few words.
    """
    fields = ("shape", "tokens", "draft", "outcomes", "path", "bonus", "pieces", "trials", "seconds", "found_at")
    plain_sec = run["baseline"]["seconds"] / run["baseline"]["tokens"]
    tokens = sum(len(step["pieces"]) for step in run["steps"])
    tree_sec = sum(sum(step["seconds"]) for step in run["steps"])
    own = next((draft for draft in drafts if draft.measured), None)
    return {
        "epoch": f"{run['id']} {[draft.speedup for draft in drafts]}",
        "prompt": run["prompt"],
        "plain_sec": plain_sec,
        "label": label,
        "predicted": run["predicted_speedup"],
        "shapes": whole_shapes(run["shapes"]),
        "steps": [{name: step[name] for name in fields if name in step} for step in run["steps"]],
        "measured": 0 if own is None else drafts.index(own),
        "drafts": [
            drawn_shape(0, draft.tree.parents.tolist())
            | {"first": draft.first, "chance": draft.chance}
            # of this text: as much more or less than it took as the prediction changes
            | {"tokens": max(1.0, tokens / len(run["steps"]) * draft.tokens / own.tokens)}
            | {"speedup": plain_sec * tokens / tree_sec * draft.speedup / own.speedup}
            for draft in drafts
            if own is not None
        ],
    }
