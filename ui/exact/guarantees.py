"""What each verifier guarantees, with exact counterexamples, and a form for trying small distributions."""

import math
from typing import Any

import numpy as np
import streamlit as st

from ui.cards import Card, cards, draw_error
from ui.controls import VERIFIER_CHOICES
from ui.phrases import count
from ui.verifier_names import DRAWING_RULES

GUARANTEES = {
    "optimal_transport": (
        "Optimal transport",
        "A single child is accepted with the highest possible probability, 1 − ‖P − Q‖₁ / 2: a better draft always "
        "helps.",
    ),
    "cover": ("Cover", "If the children include every token the target can choose, one of them is always accepted."),
}
MAX_TYPED_TOKENS = 5


def guarantees_section() -> None:
    """Show each verifier's guarantees with exact counterexamples, and let users try their own distributions."""
    from sequoia_core.decoding.verifiers import VERIFIERS as rules

    st.caption("What does each verifier guarantee? Two properties, with exact examples of what happens without them.")
    for column, name in zip(st.columns(3), VERIFIER_CHOICES, strict=True):
        with column.container(border=True, height="stretch"):
            st.markdown(f"**{VERIFIER_CHOICES[name]}**")
            with st.container(horizontal=True):
                for attribute, (label, meaning) in GUARANTEES.items():
                    if getattr(rules[name], attribute):
                        st.badge(label, icon=":material/check:", color="green", help=meaning)
                    else:
                        st.badge(f"No {label.lower()}", icon=":material/close:", color="red", help=meaning)
            st.caption(DRAWING_RULES[name])
    st.subheader("Why this matters")
    st.markdown(
        "How often one of k children is accepted, computed by enumerating every draw. With the distributions below, "
        "Sequoia tries both tokens, and SpecInfer may draw the wrong one twice. With P = Q = .6, .4 and k = 1, a "
        "perfect draft, only top-k ever rejects. Try your own."
    )
    _typed_rows()


def _typed_rows() -> None:
    """Let the user type two distributions, and show how often each verifier accepts one of k children."""
    left, middle, right = st.columns([2, 2, 1])
    options: dict[str, Any] = {"max_chars": 60, "bind": "query-params"}
    target = left.text_input(
        "Target P",
        "1, 0",
        key="robustness_p",
        help="2 to 5 probabilities separated by commas; they must sum to 1.",
        **options,
    )
    draft = middle.text_input(
        "Draft Q",
        ".5, .5",
        key="robustness_q",
        help="As many probabilities as in P; they must sum to 1.",
        **options,
    )
    k = right.number_input(
        "Children k", 1, 5, 2, key="robustness_k", bind="query-params", help="At most the number of tokens in P."
    )
    try:
        found = exact_acceptance(target, draft, int(k))
        ceiling = exact_acceptance(target, draft, 1)["sequoia"]
    except ValueError as error:
        draw_error(error)
        return
    best = max(found.values())
    cards(
        *(
            Card(
                f"{VERIFIER_CHOICES[name]} accepts",
                f"{value:.1%}",
                "best of the three" if best - value < 1e-9 else f"{100 * (best - value):.1f} points below the best",
                help="Exact: every draw is enumerated.",
            )
            for name, value in found.items()
        )
    )
    st.markdown(
        f"With one child, no rule can accept a draw from this Q more than {ceiling:.1%} of the time; "
        f"with k = {k:.0f}, the best of the three reaches {best:.1%}."
    )


def exact_acceptance(target: str, draft: str, k: int) -> dict[str, float]:
    """Return each verifier's exact acceptance probability for two typed distributions."""
    from sequoia_extras.evaluation.node_enumeration import next_token_distribution

    rows = np.array(typed_row(target, "P")), np.array(typed_row(draft, "Q"))
    return {name: next_token_distribution(*rows, k, name)[1] for name in VERIFIER_CHOICES}


def typed_row(text: str, name: str) -> list[float]:
    """Parse a short probability distribution typed by the user."""
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= MAX_TYPED_TOKENS:
        found = count(len(parts), "value")
        raise ValueError(f"{name}: found {found}, expected 2 to {MAX_TYPED_TOKENS} separated by commas")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = [math.nan]
    if not all(0.0 <= value <= 1.0 for value in values):
        raise ValueError(f"{name}: found {text!r}, expected numbers from 0 to 1 such as .5, .3, .2")
    if abs(sum(values) - 1.0) > 1e-6:
        raise ValueError(f"{name}: found a sum of {sum(values):g}, expected 1")
    return values
