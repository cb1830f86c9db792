"""A machine modelled from a device's data sheet and the models' shapes. Requires the package `hardware_models`."""

from contextlib import suppress

import streamlit as st

from sequoia_core.files.safe_files import read_json
from sequoia_core.planning.profile import HardwareProfile
from sequoia_extras.hardware_models.model_shapes import ModelShape, find_shape, shape_from_config, shipped_table
from sequoia_extras.hardware_models.roofline import find_device, modelled_profile
from ui import uploads
from ui.cards import draw_error
from ui.session import session

PREFIX = "model"  # of the names of modelled machines, which links contain
DTYPES = ("float16", "bfloat16", "float32")
OWN_CONFIG = "a config.json"
DEFAULT_SHAPES = {"Target": "llama-2-7b", "Draft": "jackfram-68m"}


def choose_model(prefix: str) -> tuple[str, ModelShape | None, ModelShape | None, str]:
    """Draw the choice of a device, a target's and a draft's shape, and a dtype, with keys that begin with `prefix`."""
    devices = {name: fields["title"] for name, fields in shipped_table("devices").items()}
    device = st.selectbox("Device", list(devices), key=f"{prefix}_device", format_func=devices.__getitem__)
    target, draft = (_shape_control(role, prefix) for role in ("Target", "Draft"))
    return device, target, draft, st.selectbox("dtype", DTYPES, key=f"{prefix}_dtype")


def chosen_profile(prefix: str) -> HardwareProfile | None:
    """Draw the choice of a device and two shapes, and return their modelled profile; None while one is missing."""
    device, target, draft, dtype = choose_model(prefix)
    if target is None or draft is None:
        return None
    return modelled_profile(target, draft, find_device(device), dtype=dtype)


def model_form() -> None:
    """Draw the choice of a device and two shapes, and the button that plans for them."""
    device, target, draft, dtype = choose_model(PREFIX)
    if st.button("Plan for this machine", key="model_use", disabled=None in (target, draft)):
        assert target is not None and draft is not None, "the button is disabled without them"
        try:
            _use(device, target, draft, dtype)
        except ValueError as error:
            draw_error(error)
        else:
            st.rerun()


def use_linked(name: str) -> None:
    """Plan for the modelled machine that a link names, if it names one."""
    prefix, *parts = name.split(":")
    if prefix == PREFIX and len(parts) == 4 and {*parts[1:3]} <= {*shipped_table("shapes")} and parts[3] in DTYPES:
        device, target, draft, dtype = parts
        with suppress(ValueError):
            _use(device, find_shape(target), find_shape(draft), dtype)


def _use(device: str, target: ModelShape, draft: ModelShape, dtype: str) -> None:
    profile = modelled_profile(target, draft, find_device(device), dtype=dtype)
    name = ":".join((PREFIX, device, target.name, draft.name, dtype))
    session.set_profile(profile, f"modelled for {profile.device}", name)


def _shape_control(role: str, prefix: str) -> ModelShape | None:
    """Draw the choice of a model's shape, from the shipped table or an uploaded config.json."""
    key = f"{prefix}_{role.lower()}"
    names = [*shipped_table("shapes"), OWN_CONFIG]
    name = st.selectbox(f"{role}'s shape", names, names.index(DEFAULT_SHAPES[role]), key=key)
    if name != OWN_CONFIG:
        return find_shape(name)
    upload = uploads.file_upload(
        f"{role}'s config.json",
        ("json",),
        lambda data, file: shape_from_config(read_json(data), file),
        key=f"{key}_config",
        help="The config.json of a model folder; only its sizes are read.",
    )
    if upload is not None and upload.error:
        st.error(upload.error, icon=":material/error:")
    return None if upload is None else upload.value
