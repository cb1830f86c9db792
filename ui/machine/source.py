"""Where the hardware profile comes from: shipped, uploaded or measured here, and what device that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from sequoia_core.design.profile_files import odd_times
from ui import controls, scenarios, uploads
from ui.markdown import escaped
from ui.measuring import profile as profile_measurement
from ui.measuring import state_chip
from ui.session import machine, session, shipped

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile


def choose_shipped() -> None:
    """Use the shipped profile that was just picked."""
    name = st.session_state["hardware_shipped"]
    if name is not None:
        session.use_shipped_profile(name)


def upload_profile() -> None:
    """Read an uploaded profile; a broken file leaves the one in use untouched."""
    from sequoia_core import HardwareProfile

    upload = uploads.file_upload(
        "Hardware profile",
        ("json",),
        HardwareProfile.loads,
        key="hardware_file",
        help="JSON written by this page or by `python -m sequoia_core profile`.",
    )
    if upload is None:
        st.caption("Profile the machine you will decode on, then bring the file here.")
    elif upload.error:
        st.error(f"{upload.error}. The previous profile stays in use.", icon=":material/error:")
    elif upload.value is not None:
        if upload.is_new:
            session.set_profile(upload.value, f"your file {upload.name}")
            st.rerun()  # the sidebar, drawn before, may name a scenario
        st.success(f"{upload.name}: up to n = {upload.value.max_size}, in use.", icon=":material/check_circle:")


def section() -> None:
    """Let the reader choose a profile, bring one or measure one."""
    names = list(shipped.files("profiles"))
    way = controls.source_picker("Where the profile comes from", ["Shipped", "Upload", "Measure"], key="hardware_way")
    if way == "Upload":
        upload_profile()
    elif way == "Measure":
        profile_measurement.section()
    else:
        name = session.profile_name()
        st.selectbox(
            "Shipped profile",
            names,
            index=names.index(name) if name else None,
            key="hardware_shipped",
            on_change=choose_shipped,
            placeholder="Another profile is in use; pick one to replace it" if names else "None ships",
            help="Times of another machine predict another machine: measure yours before believing a speedup.",
        )


def in_use(profile: HardwareProfile) -> None:
    """Say where the profile in use comes from, whether it is of this pair and machine, and what this machine is."""
    st.markdown(
        f":material/label: **Current:** {escaped(session.profile_source())} &nbsp;·&nbsp; "
        f"acceptance {escaped(session.acceptance_source())}"
    )
    if profile.meta.get("passes_by"):
        st.caption(escaped(f"Target passes in {profile.dtype} by {str(profile.meta['passes_by'])[:120]}."))
    if (fall := odd_times(profile.sizes, profile.verify_sec)) is not None:
        st.warning(fall, icon=":material/warning:")
    state_chip.draw()
    scenarios.beside_reported()
    st.caption(f":material/memory: This machine: {escaped(' · '.join(machine.facts()))}")
