"""What the machine page says about its figures."""

from sequoia_core.design.break_even import BreakEven, Gains, IdleArithmetic, StepCost
from sequoia_core.design.planning import BestShape
from sequoia_core.design.profile import HardwareProfile

LIMITS = {
    "nothing pays": "**speculation will not pay here**: guesses cost as much as they save. A better or cheaper draft "
    "helps.",
    "acceptance": "**acceptance is the limit**: a better draft would help most.",
    "drafting": "**drafting is the limit**: a cheaper draft would help most.",
    "verifying": "**verification is the limit**: this device has little idle arithmetic for more tokens in one pass.",
}


def idle_sentence(idle: IdleArithmetic, largest: int) -> str:
    """Say how much arithmetic lies idle in a pass over one token: what speculation lives on."""
    free = f"Up to {idle.tokens} tokens are" if idle.tokens > 1 else "Not even two tokens are"
    if idle.tokens == largest:
        return f"{free} nearly free, and no more were measured: large trees are cheap here."
    return f"{free} nearly free (10% of a pass). Each further one costs {idle.further_cost:.2f} pass."


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
        f"At the best shape a step yields {best.expected_tokens:.2f} tokens. Of the {cost.total - 1:.2f} passes that "
        f"it costs extra, {cost.draft:.2f} are drafting and {cost.verify - 1:.2f} verifying more tokens: "
        f"{LIMITS[cost.limit]}"
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
        "acceptance": (gains.acceptance, "10% more accepted guesses"),
        "drafting": (gains.drafting, "10% shorter draft passes"),
        "verifying": (gains.verifying, "10% less extra time for more tokens in a target pass"),
    }
    first, *others = (f"{words}: {gain - 1:+.1%} speed" for gain, words in sorted(parts.values(), reverse=True))
    return f"**{first}**, {', '.join(others)}."
