"""The load of other processes during a measurement, as recorded with its results, and a warning about it."""

from __future__ import annotations

from typing import Any

# Share of the cores from which a measurement is called disturbed. A browser that shows a run uses up to 16 % of two
# cores and slows the run by 7 to 11 % (`benchmarks/live.py`), which a user cannot avoid. A fifth slows it by more than
# the error of most predictions.
DISTURBING_SHARE = 0.2
SUBJECTS = {1: "Another process", 2: "Two other processes", 3: "Three other processes"}
UNSEEN_SUBJECT = "Other processes or virtual machines"  # in a container or on a shared host


def busiest(*records: Any) -> dict[str, Any] | None:
    """Return the recorded load with the largest share; values that are not such records are ignored."""
    loads = [
        record
        for record in records
        if isinstance(record, dict)
        and isinstance(record.get("share"), int | float)
        and isinstance(record.get("processes"), int)
    ]
    return max(loads, key=lambda load: load["share"], default=None)


def load_sentence(*records: Any) -> str | None:
    """Return a warning about the largest of the loads recorded by `TimedLoad`; None if none of them matters."""
    load = busiest(*records)
    if load is None or load["share"] < DISTURBING_SHARE:
        return None
    count = load["processes"]
    subject = SUBJECTS.get(count, f"{count} other processes") if count > 0 else UNSEEN_SUBJECT
    return (
        f"{subject} used {load['share']:.0%} of the machine while this was timed: repeat the measurement when it is "
        "idle."
    )
