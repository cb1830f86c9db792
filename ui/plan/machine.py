"""The machine to plan for: this one, one with a known profile, or a modelled one."""

import streamlit as st

from sequoia_core import HardwareProfile
from sequoia_core.files.extras import has
from ui import controls, uploads
from ui.markdown import escaped
from ui.session import machine, session
from ui.session.state import state


def upload_profile() -> None:
    """Read an uploaded profile; an invalid file does not replace the current one."""

    upload = uploads.file_upload(
        "Hardware profile",
        ("json",),
        HardwareProfile.loads,
        key="hardware_file",
        help="JSON written by this page or by `python -m sequoia_core profile`.",
    )
    if upload is None:
        st.caption("Profile the machine that you will decode on, then upload the file here.")
    elif upload.error:
        st.error(f"{upload.error}. The previous profile stays in use.", icon=":material/error:")
    elif upload.value is not None:
        if upload.is_new:
            session.set_profile(upload.value, f"your file {upload.name}", upload.name)
            st.rerun()  # the bar was drawn before
        st.success(
            f"{upload.name} is now the current profile, up to n = {upload.value.max_size}.",
            icon=":material/check_circle:",
        )


def machine_title() -> str:
    """Return a short name of the current machine for a label."""
    chosen = state().profile
    return "This machine" if chosen is None else session.profile_title(chosen.value).rpartition(", ")[0]


def machine_control() -> None:
    """Draw the list of machines, the upload of a profile, and the form that models a machine."""
    known = session.profiles()
    names = sorted(known, key=lambda name: (name not in state().own_profiles, "NVIDIA" not in known[name].device))
    titles = {"here": f"This machine: {escaped(machine.device_name())}"} | {
        name: escaped(f"{session.profile_title(known[name])} · {_origin(name, known[name])}") for name in names
    }
    controls.choice_list(
        "Machine",
        titles,
        "here" if state().profile is None else session.profile_name(),
        session.use_profile,
        key="plan_machine",
        help="The pass times to plan with. Live runs and races always use this machine.",
    )
    if has("hardware_models"):
        with st.expander("Model another machine", icon=":material/functions:", key="plan_model"):
            from ui.plan import modelled

            modelled.model_form()
    with st.expander("Upload a profile", icon=":material/upload_file:", key="plan_profile"):
        upload_profile()


def _origin(name: str, hardware: HardwareProfile) -> str:
    if hardware.modelled:
        return "modelled"
    own = state().own_profiles
    return own[name].source if name in own else "measured"
