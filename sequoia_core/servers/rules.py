"""The rules that tell what is wrong with a server's speculative decoding: one function each. K = positions.

A rule fires only where exact bounds lie beyond its threshold. Names such as vllm#50170 are threads on GitHub.
"""

from dataclasses import dataclass
from math import ceil, nan

import numpy as np

from ..design.bootstrap import Estimate
from ..files.gguf_header import LLAMA_CPP
from .counts import ServerCounts
from .evidence import (
    MIN_DRAFTS,
    MIN_FIRST_RATE,
    Evidence,
    drafted_tokens,
    drafts_or_steps,
    drafts_reaching,
    first_position,
    later_positions,
    needed_drafts,
    rounded_up,
    share_of,
    yield_of,
)
from .flags import NGRAM, method_of
from .request_spread import FALSE_ALARM, Collapse, long_prompts, unevenness

DEVIATIONS = 2.576  # of a normal law: half of FALSE_ALARM, since few drafts have fatter tails
LIMITED_RATE = 0.9  # of drafts accepted whole
MIN_SECOND_RATE = 0.5  # accepted given the first; above it a low first position is selection: a hard place to begin
CLIFF_RATIO = 0.6  # of the rate before: a window, block or position limit (vllm#51009: .25 after a first near normal)
FADE_RATIO = 0.6  # of the first half's rate: one layer of a head used again and again (vllm#52688)
MIN_USED_SHARE = 0.1  # of drafted tokens, where a draft yields one or more (llama.cpp#25908: .07 of 64, 4.5 of them)
MIN_WORSENING = 0.05  # fewer accepted: other texts do that by themselves (llama.cpp#27106: .7 to .5)
MIN_DRAFTED_SHARE = 0.5  # of steps with a draft: a minimum probability, n-grams (llama.cpp#22506)
MAX_LOOPING_SHARE = 0.2  # of answers that repeat themselves: a draft guesses a loop (model-serving-minefield#108)
MIN_SPEED = 0.97  # of the speed without a draft (mlx-lm#1132: .65)
HEALTHY_RATE = 0.7  # at every position: what published heads reach, supposed where nothing better is known
MIN_LATER_TRIALS = 500  # of later positions, below which a fall at one may not show (power: benchmarks/results)
MAX_UNEVENNESS = 0.3  # of the first position between parts: answers of the demo pair have .22, any rates alike .29
MIN_HEALTHY_DRAFTS = 100  # below which most faults do not show (power: benchmarks/results)

HEALTHY, WIRED_WRONG, RUNS_OUT, LONGER = "healthy", "wired wrong", "runs out", "falls with prompt length"
TOO_LONG, NEVER, RARELY, LIMIT = "K above what the head gives", "never drafted", "drafts rarely", "K is the limit"
WORSE, LOOPS, COSTS, UNKNOWN = "worse than before", "degenerate text", "fine but costs too much", "cannot tell"
COLLAPSES, MISFIT = "acceptance collapses", "n-grams do not fit these texts"


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """What a rule found.

    Args:
        says: what it means, one sentence; check: what to look at next.
        position: where drafts run out, from 1.
        mended: supposed survival by position once it is mended; empty where unknown.
    """

    verdict: str
    evidence: tuple[Evidence, ...]
    says: str
    check: str
    position: int | None = None
    mended: tuple[float, ...] = ()
    supposed: str = f"{HEALTHY_RATE:.0%} at every position"

    @property
    def title(self) -> str:
        return self.verdict[0].upper() + self.verdict[1:] + (f" at position {self.position}" if self.position else "")

    def __str__(self) -> str:
        return f"{self.title}: {self.evidence[0]}. {self.says} Check {self.check}."


def never_drafted(counts: ServerCounts) -> Finding | None:
    """Fire where nothing was proposed (mlx-engine#280: the draft failed to load almost in silence)."""
    if counts.drafts != 0 and counts.draft_tokens != 0:
        return None
    seen = () if counts.tokens is None else (Evidence("tokens generated", counts.tokens, share=False),)
    if not (counts.tokens or counts.requests_done or counts.steps):
        says = "Nothing was drafted, and whether anything was generated is not counted."
        if counts.tokens == 0 or counts.requests_done == 0:
            says = "Nothing was generated: no request was answered in the time that these counts cover."
        return Finding(UNKNOWN, seen, says, "two readings around requests like yours")
    if counts.tokens is not None and drafts_or_steps(counts) < MIN_DRAFTS:
        return Finding(UNKNOWN, seen, "Too few tokens for a draft to be missed.", "the same after more requests")
    return Finding(
        NEVER, seen,
        "Nothing was drafted: the draft is not loaded, is switched off, or found nothing to draft (n-grams).",
        "the log at start: a draft refused (tokenizer, memory), K = 0, an option misspelt, batches or images that turn "
        "it off",
    )  # fmt: skip


def collapses(found: Collapse | None) -> Finding | None:
    """Fire where a stretch of the source accepts far fewer drafts than the rest of it."""
    if found is None:
        return None
    rest, low = (
        share_of(f"first position accepted, {part.source}", part.positions[0], part.drafts or 0, part)
        for part in (found.rest, found.low)
    )
    return Finding(
        COLLAPSES, (rest, low),
        f"The first position is accepted in {rest.value:.0%} of the drafts in {found.rest.source}, but in "
        f"{low.value:.0%} in {found.low.source}. Everything else said here is about {found.rest.source}.",
        "what changed there: the draft or its cache, the length of the context, overflowing numbers, the kind of text",
    )  # fmt: skip


def wired_wrong(counts: ServerCounts) -> Finding | None:
    """Fire where the first position is hardly ever accepted (vllm#50170: .036, healthy .751; vllm#56792: .009)."""
    first, later = first_position(counts), later_positions(counts)
    if first is not None and first.of is None and not counts.shares and len(counts.periods) < 2:
        return None  # one average may be of a single step
    if first is None or not first.high < MIN_FIRST_RATE or (later and later[0].low > MIN_SECOND_RATE):
        return None
    if method_of(counts.drafter) == NGRAM:
        return Finding(
            MISFIT, (first, *later), "What follows an n-gram here is seldom what followed it before.",
            "longer n-grams, which match less often but more accurately, or a draft model",
        )  # fmt: skip
    return Finding(
        WIRED_WRONG, (first, *later), "A weak draft does better: what it is given is not what it was trained on.",
        "the head's layer ids, their layout and its anchor against its own config; quantised or missing weights of the "
        "head and its output layer; tokenizer; chat template",
        mended=tuple(HEALTHY_RATE**position for position in range(1, (len(counts.positions) or 3) + 1)),
    )  # fmt: skip


def runs_out(counts: ServerCounts) -> Finding | None:
    """Fire where the rate given the position before falls by 40 % or more at one position."""
    reached = drafts_reaching(counts)
    rates = [
        share_of(f"position {position}, given the one before", reached[position], reached[position - 1], counts)
        for position in range(1, len(reached))
    ]
    for position, (before, here) in enumerate(zip(rates, rates[1:], strict=False), start=2):
        if here.high < CLIFF_RATIO * before.low:
            held = sum(reached[1:position]) / sum(reached[: position - 1])
            survival = [count / reached[0] for count in reached[1:position]]
            survival += [survival[-1] * held**more for more in range(1, len(reached) - position + 1)]
            return Finding(
                RUNS_OUT, (before, here), "The rate falls at once, which text does not do.",
                "the draft's window, block size and position limit; how it is fed its own output",
                position, tuple(survival), f"{held:.0%} from there on, as before",
            )  # fmt: skip
    return None


def too_long(counts: ServerCounts) -> Finding | None:
    """Fire where later positions are accepted far less often than the first, or nearly all of a draft is wasted."""
    drafts, accepted, drafted = drafts_or_steps(counts), counts.accepted_tokens or 0, counts.draft_tokens or 0
    if MIN_DRAFTS <= drafts <= accepted < MIN_USED_SHARE * drafted:
        seen = (
            drafted_tokens(counts),
            Evidence("accepted per draft", accepted / drafts, share=False),
            Evidence("drafted", drafted / drafts, share=False),
        )
        check = f"K = {ceil(2 * accepted / drafts)}"
        if counts.engine == LLAMA_CPP and method_of(counts.drafter) != NGRAM:
            check += ", or a minimum probability (--spec-draft-p-min 0.75)"
        return Finding(TOO_LONG, seen, "The draft is fine; nearly all of its length is thrown away.", check)
    reached = drafts_reaching(counts)
    longest, middle = len(reached) - 1, len(reached) // 2
    if longest < 3:
        return None
    first, last = (
        share_of(f"positions {start + 1} to {end}", sum(reached[start + 1 : end + 1]), sum(reached[start:end]), counts)
        for start, end in ((0, middle), (middle, longest))
    )
    if not last.high < FADE_RATIO * first.low:
        return None
    kept = sum(reached[: middle + 1]) / sum(reached)
    return Finding(
        TOO_LONG, (first, last), f"K = {longest} is more than the head can do.",
        f"how many tokens it was trained for; K = {middle} keeps {kept:.0%} of the tokens per step",
    )  # fmt: skip


def falls_with_length(counts: ServerCounts) -> Finding | None:
    """Fire where long prompts have less than two thirds of the acceptance of short ones, by more than chance."""
    comparison = long_prompts(counts.totals)
    if comparison is None or comparison.chance > FALSE_ALARM:
        return None
    seen = [
        Evidence(f"accepted per step, prompts up to {comparison.middle:,} tokens", comparison.short, share=False),
        Evidence("accepted per step, longer ones", comparison.long, share=False),
        Evidence("such a difference by chance", comparison.chance),
    ]
    return Finding(
        LONGER, tuple(seen), "Acceptance falls with the length of the prompt.",
        "the draft's own context limit and rope scaling; the position it starts at (off by one); its window",
        mended=(comparison.short,), supposed="what short prompts have",
    )  # fmt: skip


def worse(counts: ServerCounts, earlier: ServerCounts | None) -> Finding | None:
    """Fire where fewer tokens are accepted than in another period, or than with a smaller K (vllm#41834)."""
    if earlier is None:
        return None
    known = bool(earlier.positions and counts.positions)
    before, now = (yield_of(period, len(counts.positions) * known) for period in (earlier, counts))
    if before is None or now is None:
        return None
    spread = float(np.hypot(now[1], (1 - MIN_WORSENING) * before[1]))
    if now[0] + DEVIATIONS * spread >= (1 - MIN_WORSENING) * before[0]:
        return None
    what = "accepted per draft" if known else "drafted tokens accepted"
    seen = (
        Evidence(f"{what}, {when}", mean, max(mean - DEVIATIONS * by, 0.0), mean + DEVIATIONS * by, share=not known)
        for when, (mean, by) in (("before", before), ("now", now))
    )
    mended = tuple(count / (earlier.drafts or 1) for count in earlier.positions[: len(counts.positions)])
    if known and len(earlier.positions) < len(counts.positions):
        says = f"Longer drafts, K = {len(counts.positions)} instead of {len(earlier.positions)}, yield less in all."
        check = f"how many tokens it was trained for, and its block; K = {len(earlier.positions)} again"
        return Finding(TOO_LONG, tuple(seen), says, check, mended=mended, supposed="the earlier acceptance")
    return Finding(
        WORSE, tuple(seen), "Fewer tokens are accepted than before.",
        "what changed: the engine's version, sampling, thinking on or off, the kind of text, longer prompts",
        mended=mended, supposed="the earlier acceptance",
    )  # fmt: skip


def degenerate(counts: ServerCounts) -> Finding | None:
    """Fire where answers repeat themselves."""
    known = [total.looped for total in counts.totals if total.looped is not None]
    loops = known.count(True)
    if loops < max(MAX_LOOPING_SHARE * len(known), 1):
        return None
    return Finding(
        LOOPS, (Evidence("answers that end in a loop", loops / len(known), of=len(known)),),
        "A draft guesses a loop almost always: these counts tell of loops, not of the draft.",
        "the answers themselves; measure with other prompts, or without ignore_eos",
    )  # fmt: skip


def too_slow(tokens: float | None, speed: Estimate | None) -> Finding | None:
    """Fire where speculation loses time, however well drafts are accepted."""
    if speed is None or (speed.value if speed.high is None else speed.high) >= MIN_SPEED:
        return None
    low, high = (nan, nan) if speed.low is None or speed.high is None else (speed.low, speed.high)
    seen = [Evidence("speed over no speculation", speed.value, low, high, share=False)]
    if tokens is not None:
        seen.append(Evidence("tokens per step", tokens, share=False))
        seen.append(Evidence("a step's time over one without a draft", tokens / speed.value, share=False))
    return Finding(
        COSTS, tuple(seen), "A step costs more than it yields.",
        "a smaller draft, a shorter K, or none: mixtures of experts and large batches make wide passes dear",
    )  # fmt: skip


def drafts_rarely(counts: ServerCounts) -> Finding | None:
    """Fire where few steps have a draft, or drafts end early."""
    coverage, filled = counts.coverage, counts.filled
    short = counts.censored and (counts.drafts or 0) >= MIN_DRAFTS
    rare = coverage is not None and coverage < MIN_DRAFTED_SHARE and (counts.all_steps or 0) >= MIN_DRAFTS
    if not short and not rare:
        return None
    seen = [] if filled is None else [Evidence("drafts are filled to", filled)]
    seen += [] if coverage is None else [Evidence("steps with a draft", coverage)]
    seen.append(drafted_tokens(counts))
    method = method_of(counts.drafter)
    checks = ["--spec-draft-p-min 0, then count again" if counts.engine == LLAMA_CPP else "what ends drafts early"]
    if method in (None, NGRAM):
        checks.append("n-grams, which find something in few texts only")
    return Finding(
        RARELY, tuple(seen), "What is drafted may be good; little is.", "; or ".join(checks[method == NGRAM :])
    )


def limited(counts: ServerCounts) -> Finding | None:
    """Fire where nearly all that is drafted is accepted (llama.cpp#24508: .97 with a minimum probability of .85)."""
    evidence = drafted_tokens(counts)
    if counts.positions:
        evidence = share_of("drafts accepted whole", counts.positions[-1], counts.drafts or 0, counts)
    if not evidence.low >= LIMITED_RATE:
        return None
    return Finding(
        LIMIT, (evidence,), "The draft could do more: K or a minimum probability is the limit.",
        "a larger K or a lower minimum probability; and the answers, since loops look alike",
    )  # fmt: skip


def sound(counts: ServerCounts) -> Finding:
    """Say that no rule fired, or that there are too few counts to say so."""
    first, later = first_position(counts), later_positions(counts)
    if first is not None and not counts.shares:
        if first.of is None:
            average = Evidence("tokens per step on average", counts.mean_length or nan, share=False)
            says = "Averages alone, of how many drafts is unknown, say nothing by position."
            return Finding(UNKNOWN, (average,), says, "metrics, or answers with their counts")
        few = first.of < MIN_HEALTHY_DRAFTS
        if few or first.low <= MIN_FIRST_RATE:
            more = max(needed_drafts(first.value, first.of) or 0, MIN_HEALTHY_DRAFTS * few)
            enough = f"about {more:,} would do" if more else "the rate lies at the limit itself"
            says = f"{first.of:,} drafts are too few: {enough}."
            return Finding(UNKNOWN, (first,), says, "the same after more requests")
    if first is not None and not counts.positions and counts.draft_tokens:
        first = drafted_tokens(counts)  # a share of all drafted tokens is no more than that of the first ones
    if first is None or not (counts.positions or first.low > MIN_FIRST_RATE):
        return Finding(UNKNOWN, (), "These counts say nothing by position.", "metrics, or answers with their counts")
    if (uneven := unevenness(counts)) > MAX_UNEVENNESS:
        seen = Evidence("standard deviation of the first position between parts", uneven)
        says = "Parts of the source differ by more than kinds of text do: no one verdict fits them all."
        return Finding(
            UNKNOWN, (first, seen), says, "the parts by themselves: other models, drafts or kinds of request"
        )
    normal = "The first position is accepted less often than the later ones together, which is normal: drafts begin "
    normal += "where text is hard."
    says = normal if later and first.high < later[0].low else "Nothing in the counts looks wrong."
    if later and counts.drafts and (of := later[0].of) and of < MIN_LATER_TRIALS:
        needed = rounded_up(counts.drafts * MIN_LATER_TRIALS / of)
        says += f" For the later positions these are too few drafts: about {needed:,} would do."
    return Finding(HEALTHY, (first, *later), says, "what steps cost: --timed or --profile tell which K pays")
