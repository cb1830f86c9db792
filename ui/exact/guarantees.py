"""What each verifier promises, with exact counter-examples, and small rows to try it on."""

import re
from typing import Any

import numpy as np
import streamlit as st

from ui.cards import Card, cards
from ui.controls import VERIFIERS
from ui.exact import current_result
from ui.markdown import escaped
from ui.verifier_names import DRAWS

PROMISES = {
    "optimal_transport": (
        "Optimal transport",
        "With one child it accepts as often as any rule can, 1 − ‖P − Q‖₁ / 2: a better draft always pays.",
    ),
    "cover": ("Cover", "Where the children hold every token the target could want, one of them is always accepted."),
}
MAX_TOKENS = 5  # of a row typed in
EXAMPLES = (
    ("1, 0", ".5, .5", 2, "Sequoia tries both tokens; SpecInfer may draw the wrong one twice"),
    (".6, .4", ".6, .4", 1, "A perfect draft is always accepted, except by top-k"),
)


def section() -> None:
    """Show what each verifier promises, with exact counter-examples, and let the reader try rows of their own."""
    from sequoia_core.decoding.verifiers import VERIFIERS as rules

    st.caption("What does each verifier promise? Two properties, and exact examples of what their absence costs.")
    for place, name in zip(st.columns(3), VERIFIERS, strict=True):
        with place.container(border=True, height="stretch"):
            st.markdown(f"**{VERIFIERS[name]}**")
            with st.container(horizontal=True):
                for attribute, (label, meaning) in PROMISES.items():
                    kept = getattr(rules[name], attribute)
                    if kept:
                        st.badge(label, icon=":material/check:", color="green", help=meaning)
                    else:
                        st.badge(f"No {label.lower()}", icon=":material/close:", color="red", help=meaning)
            st.caption(DRAWS[name])
    st.subheader("Why it matters")
    st.markdown("How often one of k children is accepted, by enumerating every draw: P is the target, Q the draft.")
    st.table(
        [
            {
                "P": target,
                "Q": draft,
                "k": k,
                **{VERIFIERS[name]: f"{value:.3g}" for name, value in exact_acceptance(target, draft, k).items()},
                "What happens": why,
            }
            for target, draft, k, why in EXAMPLES
        ],
        hide_index=True,
        alt="Acceptance of each verifier on the two worked examples",
    )
    st.subheader("Try your own")
    _own_rows()


def _own_rows() -> None:
    """Let the reader type two rows and see how often each verifier accepts one of k children."""
    left, middle, right = st.columns([2, 2, 1])
    options: dict[str, Any] = {"max_chars": 60, "bind": "query-params"}
    target = left.text_input(
        "Target P", ".5, .3, .2", key="robustness_p", help="2 to 5 probabilities with commas; they sum to 1.", **options
    )
    draft = middle.text_input(
        "Draft Q", ".2, .3, .5", key="robustness_q", help="As many as P has; they sum to 1.", **options
    )
    k = right.number_input("Children k", 1, 5, 2, key="robustness_k", bind="query-params", help="At most the tokens.")
    try:
        found = exact_acceptance(target, draft, int(k))
        ceiling = exact_acceptance(target, draft, 1)["sequoia"]
    except ValueError as error:
        st.error(f"{escaped(str(error))}.", icon=":material/error:")
        return
    best = max(found.values())
    cards(
        *(
            Card(
                f"{VERIFIERS[name]} accepts",
                f"{value:.1%}",
                "the most of the three" if best - value < 1e-9 else f"{100 * (best - value):.1f} points below the best",
                help="Exact: every draw is enumerated.",
            )
            for name, value in found.items()
        )
    )
    st.markdown(
        f"With one child no rule can accept a draw from this Q more than {ceiling:.1%} of the time; "
        f"with k = {k:.0f} the best of the three reaches {best:.1%}."
    )
    rows = [{"verifier": name, "acceptance": value} for name, value in found.items()]
    settings = {"target_row": typed_row(target, "P"), "draft_row": typed_row(draft, "Q"), "k": int(k)}
    current_result.downloads("guarantees", {"settings": settings, "acceptance": rows}, {"Acceptance": rows})


def exact_acceptance(target: str, draft: str, k: int) -> dict[str, float]:
    """Return each verifier's exact acceptance of rows as typed."""
    from sequoia_core.studies.node_enumeration import next_token_distribution

    rows = np.array(typed_row(target, "P")), np.array(typed_row(draft, "Q"))
    return {name: next_token_distribution(*rows, k, name)[1] for name in VERIFIERS}


def typed_row(text: str, name: str) -> list[float]:
    """Read a small probability row as a person types it."""
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= MAX_TOKENS:
        raise ValueError(f"{name}: found {len(parts)} value(s), expected 2 to {MAX_TOKENS} separated by commas")
    for part in parts:
        if not re.fullmatch(r"(?=.)[0-9]*+(?:\.[0-9]++)?", part, re.ASCII) or not 0.0 <= float(part) <= 1.0:
            harmless = re.sub(r"[^A-Za-z0-9.+-]", "?", part)[:12] or "nothing"
            raise ValueError(f"{name}: found {harmless}, expected numbers from 0 to 1 such as .5, .3, .2")
    values = [float(part) for part in parts]
    if abs(sum(values) - 1.0) > 1e-6:
        raise ValueError(f"{name}: found a sum of {sum(values):g}, expected 1")
    return values
