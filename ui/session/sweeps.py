"""Cached reading of sweeps for the draft page, and selection of the hardware profiles that apply to them.

Requires the optional package `sweeps`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sequoia_core import HardwareProfile
from ui.session import core_cache, session, shipped
from ui.session.state import state

if TYPE_CHECKING:
    import pandas as pd

    from sequoia_extras.sweeps.compare import Comparison, Setting
    from sequoia_extras.sweeps.recommendations import Speeds

Stamp = tuple[int, int, int]  # a folder's number of files, their total bytes, and their latest modification time


class Sweep(NamedTuple):
    """A sweep's comparison, its profiles, and its races as `extract_races` returns them."""

    comparison: Comparison
    profiles: tuple[HardwareProfile, ...]
    races: pd.DataFrame


def request_folder(folder: str) -> None:
    """Request that the draft page open this folder."""
    state().sweep_folder = folder


def pop_requested_folder() -> str | None:
    """Return the requested folder and clear the request."""
    folder = state().sweep_folder
    state().sweep_folder = None
    return folder


def read_sweep(folder: Path) -> Sweep:
    """Read a result folder; cached until its files change."""
    return _read_cached(str(folder), _stamp(folder))


def matching_profiles(sweep: Sweep) -> dict[str, tuple[HardwareProfile, ...]]:
    """Return the profiles that fit one of the sweep's drafters, grouped by origin and machine.

    Machines with the same processor name are distinguished by the instructions their passes use, and by host if two
    hosts timed the same pair. Equal machines of a cluster count as one, because each pair is timed on one of them. The
    sweep's profiles come first, then the current one, then shipped ones; within each origin, those that fit the most
    drafters come first.
    """
    from sequoia_extras.sweeps.recommendations import fits

    drafters = sweep.comparison.drafters
    own = session.profile()
    listed = list(shipped.profiles().values())
    unlisted = [] if own is None or any(own is each for each in listed) else [own]
    in_use = "In use, modelled" if unlisted and unlisted[0].modelled else "In use"
    origins = {"This sweep": sweep.profiles, in_use: unlisted, "Shipped": listed}
    fitting = [
        ((origin, each.device, str(each.meta.get("instructions") or "")), each)
        for origin, profiles in origins.items()
        for each in profiles
        if any(fits(drafter, each) for drafter in drafters)
    ]
    timed = Counter(key + _pair_key(profile) for key, profile in fitting)
    hosts = {key[:3] for key, count in timed.items() if count > 1}
    matching: dict[tuple[str, ...], tuple[HardwareProfile, ...]] = {}
    for key, profile in fitting:
        machine = (*key, str(profile.meta.get("host") or "")) if key in hosts else key
        matching[machine] = (*matching.get(machine, ()), profile)
    devices = Counter(machine[:2] for machine in matching)

    def order(machine: tuple[str, ...]) -> tuple[int, int]:
        served = sum(any(fits(drafter, each) for each in matching[machine]) for drafter in drafters)
        return list(origins).index(machine[0]), -served

    def name(machine: tuple[str, ...]) -> str:
        details = filter(None, machine[2:]) if devices[machine[:2]] > 1 else ()
        return ", ".join([f"{machine[0]}: {machine[1]}", *details])

    return {name(machine): matching[machine] for machine in sorted(matching, key=order)}


def _pair_key(profile: HardwareProfile) -> tuple[str, ...]:
    names = (str(profile.meta.get(f"{model}_hash") or profile.meta.get(model)) for model in ("target", "draft"))
    return *names, profile.dtype, profile.offload or ""


def predict_speeds(folder: Path, profiles: tuple[HardwareProfile, ...], *settings: Setting) -> Speeds:
    """Return the predicted speed of each cell in a folder, with intervals at the given settings."""
    source = (str(folder), _stamp(folder), profiles)
    speeds = dict(_predict_cached(*source, None))
    for setting in settings:
        speeds.update(_predict_cached(*source, setting))
    return speeds


def _stamp(folder: Path) -> Stamp:
    stats = [path.stat() for path in folder.glob("rows/*.parquet")]
    return len(stats), sum(each.st_size for each in stats), max((each.st_mtime_ns for each in stats), default=0)


@core_cache.cached(2, "Reading the sweep…")
def _read_cached(folder: str, stamp: Stamp) -> Sweep:
    from sequoia_extras.sweeps.compare import compare_sweep
    from sequoia_extras.sweeps.results import extract_profiles, extract_races, read_rows

    rows = read_rows(folder)
    return Sweep(compare_sweep(rows), extract_profiles(rows), extract_races(rows))


@core_cache.cached(64, "Predicting speedups…")
def _predict_cached(folder: str, stamp: Stamp, profiles: tuple[HardwareProfile, ...], at: Setting | None) -> Speeds:
    """Return the predictions at one setting with intervals, or at all settings without."""
    from sequoia_extras.sweeps.recommendations import predict_speeds

    return predict_speeds(_read_cached(folder, stamp).comparison, profiles, at=at, intervals=at is not None)
