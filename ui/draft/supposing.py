"""Vectors that nobody measured: a power law, or the vector in use with a weaker draft."""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.what_if import power_law, weaker
from ui import controls
from ui.session import session


def section() -> tuple[str, AcceptanceVector]:
    """Offer vectors nobody measured -> (short name, vector) of the one the controls describe, in use or not."""
    base = session.original_acceptance()
    kind = st.segmented_control(
        "Suppose",
        ["Power law", "Weaker draft"],
        default="Power law",
        required=True,
        key="acceptance_suppose",
        help="A power law: the chance that all of the first k children are rejected is (1 − p₁)·k^−b. "
        "A weaker draft: the vector in use, on a share of the positions only.",
    )
    if kind == "Power law":
        first, second, third = st.columns(3)
        p1 = first.slider("p₁", 0.0, 1.0, round(float(base.probs[0]), 2), 0.01, key="acceptance_p1", help="First rank.")
        b = second.slider(
            "b", 0.0, 3.0, 0.5, 0.05, key="acceptance_b", help="How fast more children help; 0: only the first does."
        )
        ranks = third.slider("Length", 1, 64, 32, key="acceptance_length", help="Ranks of the vector.")
        supposed = f"power law {p1:g}, {b:g}", power_law(p1, b, ranks)
    else:
        share = st.slider(
            "Positions where the draft is as good as now",
            0,
            100,
            50,
            5,
            format="%d%%",
            key="acceptance_share",
            help="On the other positions every child is rejected.",
        )
        supposed = f"weaker, {share}%", weaker(base, share / 100)
    if controls.primary_button("Use this vector", icon=":material/check:", key="acceptance_use_supposed"):
        name, vector = supposed
        session.set_acceptance(vector, f"supposed, {name}", name)
        st.rerun()
    return supposed
