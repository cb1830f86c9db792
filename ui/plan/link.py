"""The URL parameters of the plan bar; those of the sampling are bound to its sliders, the others are written here."""

from pathlib import Path

import streamlit as st

from sequoia_core.files.extras import has
from sequoia_core.models import gemma
from sequoia_core.models.pair_spec import PairSpec
from ui.plan import kept_plan
from ui.session import model_pairs, session
from ui.session.state import state

OLD_NAME = "vector"  # of the parameter "acceptance"


def read_link() -> None:
    """Apply the URL's parameters, once per session; unknown names are ignored."""
    if state().link_read:
        return
    state().link_read = True
    session.load_kept()
    if plan := st.query_params.get("plan"):
        try:
            kept_plan.load_plan(plan)
        except ValueError:
            st.toast("The link's plan is not kept on this machine, or was deleted.", icon=":material/link_off:")
    given = {name: st.query_params.get(name, "") for name in ("models", "acceptance", "machine")}
    if given["models"] in (pairs := _linkable_pairs()):
        state().pair = pairs[given["models"]]
    if given["machine"] in session.profiles():
        session.use_profile(given["machine"])
    elif given["machine"] and has("hardware_models"):
        from ui.plan import modelled

        modelled.use_linked(given["machine"])
    vector = given["acceptance"] or st.query_params.get(OLD_NAME, "")
    if vector in session.vectors():
        session.use_vector(vector)


def write_link(name: str, result: str) -> None:
    """Write the session's choices into the URL, without defaults, and keep them as a plan.

    `name` and `result` describe the plan in lists.
    """
    pair = next((name for name, spec in _linkable_pairs().items() if spec == state().pair), None)
    chosen = {
        "plan": kept_plan.keep_plan(name, result),
        "models": pair,
        "acceptance": session.acceptance_name() if session.has_chosen_acceptance() else None,
        "machine": None if state().profile is None else session.profile_name(),
    }
    st.query_params.pop(OLD_NAME, None)
    for name, value in chosen.items():
        if value is None:
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != value:
            st.query_params[name] = value


def _linkable_pairs() -> dict[str, PairSpec]:
    """Return the pairs that links may name: only those that the app itself offers, because links are untrusted."""
    others = list(model_pairs.demo_pairs().values())[1:]  # the first one is the default
    pairs = {f"demo-{Path(str(pair.draft)).name}": pair for pair in others}
    if has("gguf") and gemma.is_installed():
        pairs |= {"gemma": model_pairs.gemma_pair(), "gemma-alone": model_pairs.gemma_alone()}
    return pairs
