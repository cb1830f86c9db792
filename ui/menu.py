"""Which pages there are, by the reader's task: what the router shows and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    from streamlit.navigation.page import StreamlitPage


def pages() -> dict[str, list[StreamlitPage]]:
    """Return the pages by section of the menu; paths are relative to `app.py`."""
    return {
        "": [
            st.Page(
                "pages/overview.py",
                title="Overview",
                icon=":material/home:",
                default=True,
                help="Where your results stand, and one button that runs the whole chain on the demo pair.",
            ),
        ],
        "Design": [
            st.Page(
                "pages/acceptance.py",
                title="Acceptance",
                icon=":material/checklist:",
                help="How often is the draft right? Measure the acceptance vector of a model pair or bring your own.",
            ),
            st.Page(
                "pages/tree.py",
                title="Tree",
                icon=":material/account_tree:",
                help="The provably best token tree for an acceptance vector, its expected tokens, and export.",
            ),
            st.Page(
                "pages/hardware.py",
                title="Hardware",
                icon=":material/memory:",
                help="What one pass costs on this machine, and the predicted speedup of every tree shape.",
            ),
            st.Page(
                "pages/lookup.py",
                title="Replay",
                icon=":material/replay:",
                help="What trees of text already seen would do for recorded answers; no draft, no model.",
            ),
            st.Page(
                "pages/server.py",
                title="Server",
                icon=":material/dns:",
                help="Which draft length pays on a vLLM, SGLang or llama.cpp server, by what it counted; no model.",
            ),
        ],
        "Decode": [
            st.Page(
                "pages/decode.py",
                title="Decode",
                icon=":material/play_circle:",
                help="Decode for real, watch the tree step by step, and compare the speedup with the prediction.",
            ),
            st.Page(
                "pages/race.py",
                title="Race",
                icon=":material/flag:",
                help="Every way of decoding on one prompt, one after another, replayed side by side.",
            ),
            st.Page(
                "pages/runs.py",
                title="Runs",
                icon=":material/history:",
                help="What was decoded here or opened from files, two runs side by side, and saving them.",
            ),
        ],
        "Evidence": [
            st.Page(
                "pages/robustness.py",
                title="Robustness",
                icon=":material/verified:",
                help="Evidence on your pair: which verifier wins at which temperature, and is the output still exact?",
            ),
            st.Page(
                "pages/compare.py",
                title="Compare",
                icon=":material/grid_on:",
                help="Which draft pays, at which temperature and on which texts? A sweep of all of them in one map.",
            ),
            st.Page(
                "pages/regret.py",
                title="Regret",
                icon=":material/compare_arrows:",
                help="What a tree loses where another acceptance vector holds: another temperature, domain or pair.",
            ),
        ],
    }
