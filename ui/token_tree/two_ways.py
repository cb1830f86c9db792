"""An answer decoded with and without a tree, and the effect of the draft's quality on its speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from ui.token_tree import CSS, drawn_shape, read_asset, read_script, to_wire, whole_shapes

# shares of the measured guesses that a worse draft gets right, and multiples of the misses of a better one
HITS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MISSES = tuple(tenths / 10 for tenths in range(10, 0, -1))
MAX_SIZE = 32  # number of nodes that can still be distinguished when drawn
HTML = read_asset("two_ways.html")
SCRIPT = read_script("two_ways film clock shapes drawing pen words")
STYLE = CSS + read_asset("two_ways.css")
_COMPONENT = st.components.v2.component("sequoia_two_ways", html=HTML, css=STYLE, js=SCRIPT)


@dataclass(frozen=True, slots=True)
class SupposedDraft:
    """The planned tree, tokens per step and speedup for a hypothetical draft of different quality.

    Attributes:
        first: probability that the draft's first guess is right.
        tree: the tree that is used with this draft.
        chance: probability [n] that each node is reached and accepted.
        tokens: expected tokens per step.
        speedup: predicted speedup.
        measured: whether this is the measured draft itself.
    """

    first: float
    tree: TokenTree
    chance: list[float]
    tokens: float
    speedup: float
    measured: bool


def supposed_drafts(vector: AcceptanceVector, profile: HardwareProfile) -> list[SupposedDraft]:
    """Return drafts that are right less or more often than measured, from worst to best.

    Worse ones keep the tree planned for the measured draft, as when a plan is not renewed; better ones get their best.
    """
    from sequoia_core.acceptance.what_if import edited
    from sequoia_core.planning.plan import plan_tree
    from sequoia_core.planning.prediction import predict
    from sequoia_core.trees.optimal import node_scores

    drafts = []
    better = [vector.probs * factor for factor in MISSES]
    for probs, factor in zip(better, MISSES, strict=True):
        probs[0] = 1.0 - factor * (1.0 - vector.probs[0])
    planned = plan_tree(vector, profile, max_size=MAX_SIZE)
    for place, probs in enumerate([*(vector.probs * share for share in HITS), *better]):
        is_measured = place == len(HITS)
        supposed = vector if is_measured else edited(vector, probs)
        tree = plan_tree(supposed, profile, max_size=MAX_SIZE) if place > len(HITS) else planned
        prediction = predict(tree, supposed, profile)
        drafts.append(
            SupposedDraft(
                float(probs[0]),
                tree,
                node_scores(tree, supposed).tolist(),
                prediction.tokens_per_step.value,
                prediction.speedup.value,
                is_measured,
            )
        )
    return drafts


def two_ways(comparison: Mapping[str, Any], film: Mapping[str, Any] | None, *, key: str) -> None:
    """Play back one answer decoded with and without a tree, after the film of the measurement if there is one.

    Args:
        comparison: the result of `comparison_data`; empty if there is only a film.
        film: the frames from `ui.overview.film`, how the measurement ended, and what it decodes; None for no film.
    """
    _COMPONENT(key=key, data=to_wire({**comparison, "film": film}))


def comparison_data(run: Mapping[str, Any], drafts: Sequence[SupposedDraft], *, label: str) -> dict[str, Any]:
    """Return the data that replays a greedy run and plain decoding of the same text at their true relative speed.

    Args:
        run: the run, as described in `ui.runs.run_schema`, with its baseline.
        drafts: the drafts on the slider, from worst to best; empty hides the slider.
        label: a short description of how the run was made.
    """
    fields = ("shape", "tokens", "draft", "outcomes", "path", "bonus", "pieces", "trials", "seconds", "found_at")
    plain_sec = run["baseline"]["seconds"] / run["baseline"]["tokens"]
    tokens = sum(len(step["pieces"]) for step in run["steps"])
    tree_sec = sum(sum(step["seconds"]) for step in run["steps"])
    measured = next((draft for draft in drafts if draft.measured), None)
    return {
        "epoch": f"{run['id']} {[draft.speedup for draft in drafts]}",
        "prompt": f"{run['turns'][-1]['text']}\n\n" if run["turns"] else run["prompt"],  # without the chat template
        "plain_sec": plain_sec,
        "label": label,
        "predicted": run["predicted_speedup"],
        "shapes": whole_shapes(run["shapes"]),
        "steps": [{name: step[name] for name in fields if name in step} for step in run["steps"]],
        "measured": 0 if measured is None else drafts.index(measured),
        "drafts": [
            drawn_shape(0, draft.tree.parents.tolist())
            | {"first": draft.first, "chance": draft.chance}
            # scale this text's measured figures by the change in the prediction
            | {"tokens": max(1.0, tokens / len(run["steps"]) * draft.tokens / measured.tokens)}
            | {"speedup": plain_sec * tokens / tree_sec * draft.speedup / measured.speedup}
            for draft in drafts
            if measured is not None
        ],
    }
