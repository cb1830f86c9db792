"""Sentences for the machine page."""

from sequoia_core.planning.break_even import BreakEven, Gains, IdleArithmetic, StepCost
from sequoia_core.planning.plan import BestShape
from sequoia_core.planning.profile import HardwareProfile

LIMIT_SENTENCES = {
    "nothing pays": "**speculation does not pay here**: guesses cost as much as they save. A better or cheaper draft "
    "would help.",
    "acceptance": "**acceptance is the limit**: a better draft would help most.",
    "drafting": "**drafting is the limit**: a cheaper draft would help most.",
    "verifying": "**verification is the limit**: this device has little idle compute for more tokens per pass.",
}


def idle_sentence(idle: IdleArithmetic, largest: int) -> str:
    """Describe the idle compute of a one-token pass, which speculation uses."""
    free = f"Up to {idle.tokens} tokens are" if idle.tokens > 1 else "Not even two tokens are"
    if idle.tokens == largest:
        return f"{free} nearly free, and larger passes were not measured: large trees are cheap here."
    return f"{free} nearly free (at most 10% of a pass). Each further token costs {idle.further_cost:.2g} passes."


def reading_sentence(profile: HardwareProfile, ends: int | None) -> str:
    """Describe how streaming limits a target pass, and up to which number of tokens."""
    assert profile.streaming is not None, "only for profiles whose target streams"
    seconds = format_time(profile.streaming.pass_sec)
    tier = {"disk": "disk", "host": "the host's memory"}.get(profile.offload or "", "a slower tier")
    streams = f"in every pass, the target's layers are streamed from {tier}"
    if ends is None:
        return (
            f"Although {streams} ({seconds}), computation takes longer even for one token, so streaming costs "
            "nothing here."
        )
    tokens = "the largest size measured" if ends == profile.max_size else "where computation overtakes reading"
    return (
        f"The dashed line is the reading time: {streams}, which takes {seconds}. Up to n = {ends}, {tokens}, "
        "a pass takes no longer than that: verifying drafted tokens is free, and drafting overlaps with reading."
    )


def limit_sentence(best: BestShape, cost: StepCost) -> str:
    """Describe where a step's time goes and what would help most."""
    return (
        f"At the best shape, a step yields {best.expected_tokens:.2f} tokens. Its extra cost of "
        f"{cost.total - 1:.2g} passes consists of {cost.draft:.2g} for drafting and {cost.verify - 1:.2g} for "
        f"verifying more tokens: {LIMIT_SENTENCES[cost.limit]}"
    )


def format_time(seconds: float) -> str:
    """Format a time in milliseconds or, from one second up, in seconds."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def break_even_rows(found: dict[str, BreakEven], size: int) -> list[dict[str, str]]:
    """Return a row per quantity, with its current value and the value at which speculation breaks even."""
    names = {
        "p_1": "p₁, first guess right",
        "c": "c, draft pass ÷ target pass",
        "t": f"t({size}), the tree's pass",
    }
    rows = []
    for name, point in found.items():
        even = "never" if point.value is None else f"{point.value:.3g}"
        margin = "–"
        if point.factor is not None:
            margin = f"× {point.factor:.2g}" if point.factor < 99 else f"× {point.factor:.0f}"
        rows.append({"what": names[name], "now": f"{point.now:.3g}", "break-even": even, "that is": margin})
    return rows


def gains_sentence(gains: Gains) -> str:
    """Describe the gain from improving each part by 10%, in descending order of gain."""
    parts = [
        (gains.acceptance, "10% more accepted guesses"),
        (gains.drafting, "10% shorter draft passes"),
        (gains.verifying, "10% less extra time per additional token in a target pass"),
    ]
    first, *others = (f"{words}: {gain - 1:+.1%} speed" for gain, words in sorted(parts, reverse=True))
    return f"**{first}**, {', '.join(others)}."
