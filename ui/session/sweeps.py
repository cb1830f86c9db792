"""The sweep that the draft page looks at: read once, compared once, with the times that fit it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from ui.session import session, shipped
from ui.session.state import get, put

if TYPE_CHECKING:
    import pandas as pd

    from sequoia_core import HardwareProfile
    from sequoia_core.sweeps.compare import Comparison, Setting
    from sequoia_core.sweeps.which_pays import Speeds

Stamp = tuple[int, int, int]  # of a folder's files: how many, bytes, when the last one was written


class Sweep(NamedTuple):
    """A sweep that was read.

    Attributes:
        races: run in it, as `races_of` returns them.
    """

    comparison: Comparison
    profiles: tuple[HardwareProfile, ...]
    races: pd.DataFrame


def show(folder: str) -> None:
    """Let the draft page open at a folder."""
    put("sweep_to_show", folder)


def pop_folder_to_show() -> str | None:
    """Return the folder that the draft page should open at, once."""
    folder = get("sweep_to_show")
    put("sweep_to_show", None)
    return folder


def read(folder: Path) -> Sweep:
    """Read a folder of results; again only when its files have changed."""
    return _read(str(folder), _stamp(folder))


def machines(sweep: Sweep) -> dict[str, tuple[HardwareProfile, ...]]:
    """Return the profiles that fit some drafter by where they come from and their machine.

    Processors of one name are told apart by what their passes use, and by their host where two of them timed the same
    pair: on equal machines of a cluster each pair is timed on one of them.
    The sweep's own come first, then the one in use, then shipped ones, those that fit the most drafters before others.
    """
    from sequoia_core.sweeps.which_pays import fits

    known = [("This sweep", profile) for profile in sweep.profiles]
    if session.profile_name() is None and (own := session.profile()) is not None:
        known.append(("In use, modelled" if own.modelled else "In use", own))
    known += [("Shipped", shipped.profile(name)) for name in shipped.files("profiles")]
    fitting = [
        (origin, each) for origin, each in known if any(fits(drafter, each) for drafter in sweep.comparison.drafters)
    ]

    def machine(origin: str, profile: HardwareProfile) -> tuple[str, ...]:
        return origin, profile.device, str(profile.meta.get("instructions") or "")

    timed = Counter(machine(*each) + _pair(each[1]) for each in fitting)
    hosts = {key[:3] for key, count in timed.items() if count > 1}
    found: dict[tuple[str, ...], tuple[HardwareProfile, ...]] = {}
    for origin, profile in fitting:
        key = machine(origin, profile)
        key += (str(profile.meta.get("host") or ""),) if key in hosts else ()
        found[key] = (*found.get(key, ()), profile)

    def place(item: tuple[tuple[str, ...], tuple[HardwareProfile, ...]]) -> tuple[int, int]:
        (origin, *_), profiles = item
        served = [any(fits(drafter, each) for each in profiles) for drafter in sweep.comparison.drafters]
        return [other for other, _ in known].index(origin), -sum(served)

    devices = Counter(machine[:2] for machine in found)

    def name(machine: tuple[str, ...]) -> str:
        told = filter(None, machine[2:]) if devices[machine[:2]] > 1 else ()
        return ", ".join([f"{machine[0]}: {machine[1]}", *told])

    return {name(machine): profiles for machine, profiles in sorted(found.items(), key=place)}


def _pair(profile: HardwareProfile) -> tuple[str, ...]:
    names = (str(profile.meta.get(f"{model}_hash") or profile.meta.get(model)) for model in ("target", "draft"))
    return *names, profile.dtype, profile.offload or ""


def speeds(folder: Path, profiles: tuple[HardwareProfile, ...], *settings: Setting) -> Speeds:
    """Return what is predicted of each cell of a folder that can be read, with intervals at some settings."""
    place = str(folder), _stamp(folder), profiles
    sure = [_speeds(*place, setting) for setting in settings]
    return {key: speed for each in (_speeds(*place, None), *sure) for key, speed in each.items()}


def _stamp(folder: Path) -> Stamp:
    try:
        with os.scandir(folder / "rows") as files:
            stats = [file.stat() for file in files if file.name.endswith(".parquet")]
    except OSError:
        return 0, 0, 0
    return len(stats), sum(each.st_size for each in stats), max((each.st_mtime_ns for each in stats), default=0)


@st.cache_resource(show_spinner="Reading the sweep…", max_entries=2)
def _read(folder: str, stamp: Stamp) -> Sweep:
    from sequoia_core.sweeps.compare import compare
    from sequoia_core.sweeps.results import profiles_of, races_of, read_rows

    rows = read_rows(folder)
    return Sweep(compare(rows), profiles_of(rows), races_of(rows))


@st.cache_resource(
    show_spinner="Predicting speedups…",
    max_entries=64,
    hash_funcs={
        "sequoia_core.design.profile.HardwareProfile": lambda profile: profile.to_json(),
        "sequoia_core.sweeps.compare.Setting": tuple,
    },
)
def _speeds(folder: str, stamp: Stamp, profiles: tuple[HardwareProfile, ...], at: Setting | None) -> Speeds:
    """Return what is predicted at one setting, with intervals; for None everywhere, without."""
    from sequoia_core.sweeps.which_pays import predict_speeds

    return predict_speeds(_read(folder, stamp).comparison, profiles, at=at, intervals=at is not None)
