"""How a finished run contradicts the prediction that was made for it."""

from typing import Any

import numpy as np

from sequoia_core import TokenTree
from sequoia_core.planning.reasons import Measured, reasons
from sequoia_core.planning.step_time import StepTime
from ui.phrases import ONE_PASS_DIGITS, times, times_between
from ui.runs import runs
from ui.session import core_cache, predictions, session
from ui.session.state import state

PART_WORDS = {  # part -> what is said of it if the run was faster than predicted, and if it was slower
    "acceptance": ("the draft was right more often", "the draft was right less often"),
    "verifying": ("verification was faster", "verification was slower"),
    "drafting": ("drafting was faster", "drafting was slower"),
    "overhead": ("the rest of a step was faster", "the rest of a step was slower"),
    "baseline": ("plain decoding was slower", "plain decoding was faster"),
}


def note_contradiction(run: dict[str, Any]) -> None:
    """Record whether a finished run's speedup lies outside the interval predicted for it, and which part differs."""
    hardware = session.profile()
    measured = average_step(run)
    summary = runs.summarize(run)
    bounds = summary.predicted_interval
    if hardware is None or measured is None or bounds is None or summary.speedup is None:
        return
    if not predictions.matches_pair_in_use(run):
        return
    state().contradiction = None
    tree = single_tree(run)
    if summary.outcome not in ("beaten", "missed") or tree is None or tree.size > hardware.max_size:
        return
    missed = summary.outcome == "missed"
    found = reasons(core_cache.prediction(session.acceptance(), hardware, tree), measured)
    causes = [each for each in found if (each.effect < 1) == missed]
    words = f"the last run reached {times(summary.speedup, ONE_PASS_DIGITS)}, predicted {times_between(*bounds)}"
    if causes:
        cause = max(causes, key=lambda each: abs(each.effect - 1))
        words += f", because {PART_WORDS[cause.part][missed]} than measured before"
    state().contradiction = (predictions.profile_key(hardware), words)


def average_step(run: dict[str, Any]) -> Measured | None:
    """Return the average step of a run; None if it has no steps."""
    steps = run["steps"]
    if not steps:
        return None
    draft, verify, *rest = (sum(parts) / len(steps) for parts in zip(*(step["seconds"] for step in steps), strict=True))
    tokens = sum(len(step["pieces"]) for step in steps)
    baseline = run["baseline"]
    alone = baseline["seconds"] / baseline["tokens"] if baseline and baseline["tokens"] else None
    return Measured(tokens / len(steps), StepTime(verify, draft, sum(rest)), alone)


def single_tree(run: dict[str, Any]) -> TokenTree | None:
    """Return the tree that all of a run's steps used; None if the trees differ."""
    return TokenTree(np.array(run["shapes"][0])) if len(run["shapes"]) == 1 else None
