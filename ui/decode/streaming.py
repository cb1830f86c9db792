"""What a run says of a target whose weights streamed: how fast they came, and how much of a pass was waiting."""

from __future__ import annotations

from typing import Any

import streamlit as st


def caption(run: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Say how the weights came in during the steps so far; nothing for a run with all of them in memory."""
    rate, verify = run.get("read_bytes_per_sec"), sum(step["seconds"][1] for step in steps)
    if rate is None or not verify:
        return
    waited = sum(step.get("read_wait_sec", 0.0) for step in steps) / verify
    st.caption(
        f":material/hard_drive: Weights streamed at {rate / 1e9:.2f} GB/s, with the tree and without it; "
        f"{waited:.0%} of the target's passes was waiting for them (violet in the lanes)."
    )
