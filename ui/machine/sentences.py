"""What the machine page says about its figures."""

from __future__ import annotations

from sequoia_core.design.break_even import BreakEven, Gains, IdleArithmetic, StepCost
from sequoia_core.design.planning import BestShape
from sequoia_core.design.profile import HardwareProfile

LIMITS = {
    "nothing pays": "**speculation will not pay here**: guesses cost as much as they save. A better or cheaper draft "
    "helps.",
    "acceptance": "almost what one token costs anyway, so **acceptance is the limit**: a better draft would help most.",
    "drafting": "**drafting is the limit**: a cheaper draft would help more than a faster target pass.",
    "verifying": "**verification is the limit**: this device has little idle arithmetic for more tokens in one pass.",
}


def idle_sentence(idle: IdleArithmetic, largest: int) -> str:
    """Say how much arithmetic lies idle in a pass over one token: what speculation lives on."""
    free = f"Up to n = {idle.tokens}" if idle.tokens > 1 else "Not even two tokens"
    if idle.tokens == largest:
        return (
            f"{free}, the largest size measured, a pass costs hardly more than one token: large trees are cheap here."
        )
    costs = "a pass costs at most 10% more than one token" if idle.tokens > 1 else "cost as little as one"
    return (
        f"{free} {costs}: so much arithmetic lies idle while the weights are read. Each token beyond costs "
        f"{idle.further_cost:.2f} of a pass and must earn it. The faster a processor reads, the less lies idle."
    )


def reading_sentence(profile: HardwareProfile, ends: int | None) -> str:
    """Say what streaming makes of a target pass, and up to how many tokens."""
    assert profile.streaming is not None, "said of profiles whose target streams"
    arrive = time_of(profile.streaming.pass_sec)
    where = "in every pass the target's layers stream " + {"disk": "from disk", "host": "from the host's memory"}.get(
        profile.offload or "", "from a slower tier"
    )
    if ends is None:
        return f"Although {where} ({arrive}), computing takes longer even for one token: streaming costs nothing here."
    tokens = "the largest size measured" if ends == profile.max_size else "where computing overtakes reading"
    return (
        f"The dashed line is reading: {where}, which takes {arrive}. Up to n = {ends}, {tokens}, a pass takes no "
        "longer than that: drafted tokens are verified for nothing, and drafting hides behind reading, too."
    )


def limit_sentence(best: BestShape, cost: StepCost) -> str:
    """Say in one sentence where a step's time goes and what would help most."""
    return (
        f"At the best shape a step yields {best.expected_tokens:.2f} tokens and costs {cost.total:.2f} single-token "
        f"passes, {cost.verify:.2f} to verify and {cost.draft:.2f} to draft; {LIMITS[cost.limit]}"
    )


def time_of(seconds: float) -> str:
    """Write a time in milliseconds, or in seconds where that is shorter."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def break_even_rows(found: dict[str, BreakEven], size: int) -> list[dict[str, str]]:
    """Return one row for each thing that decides: what it is now, and where speculation would break even."""
    names = {
        "p_1": "p₁, first guess right",
        "c": "c, a draft pass",
        "t": f"t({size}), the tree's pass",
    }
    rows = []
    for name, point in found.items():
        even = "never" if point.value is None else f"{point.value:.3g}"
        margin = (
            "–" if point.factor is None else f"× {point.factor:.2g}" if point.factor < 99 else f"× {point.factor:.0f}"
        )
        rows.append({"what": names[name], "now": f"{point.now:.3g}", "break-even": even, "that is": margin})
    return rows


def gains_sentence(gains: Gains) -> str:
    """Say what a tenth better would bring, the largest first."""
    parts = {
        "acceptance": (gains.acceptance, "accepted guesses"),
        "drafting": (gains.drafting, "less time in draft passes"),
        "verifying": (gains.verifying, "less extra time for more tokens in a target pass"),
    }
    first, *others = sorted(parts.values(), reverse=True)
    rest = ", ".join(f"{words} {gain - 1:+.1%}" for gain, words in others)
    return f"A tenth more or less would help: **{first[1]} {first[0] - 1:+.1%}** speedup, {rest}."
