"""The rules that diagnose a server's speculative decoding, one function each. K = number of positions.

A rule fires only if exact bounds lie beyond its threshold. Names such as vllm#50170 refer to GitHub issues.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil, nan

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.planning.profile import LLAMA_CPP

from .evidence import MIN_DRAFTS, Evidence, Facts
from .flags import NGRAM
from .request_spread import MIN_FIRST_RATE, RULE_FALSE_ALARM

STANDARD_ERRORS = 2.576  # normal quantile at RULE_FALSE_ALARM / 2, because small samples have fatter tails
LIMITED_RATE = 0.9  # K limits the yield if at least this share of drafts is accepted in full
MIN_SECOND_RATE = 0.5  # above this rate at later positions, a low first rate only means that drafts start in hard text
# A rate below this fraction of the previous position's suggests a window, block or position limit (vllm#51009: .25).
CLIFF_RATIO = 0.6
# A later half below this fraction of the first half's rate suggests one head layer for every position (vllm#52688).
FADE_RATIO = 0.6
MIN_USED_SHARE = 0.1  # K is too large if a smaller share of the drafted tokens is accepted (llama.cpp#25908: 4.5 of 64)
MIN_WORSENING = 0.05  # smaller relative drops are not reported; other texts can cause them (llama.cpp#27106: .7 to .5)
MIN_DRAFTED_SHARE = 0.5  # drafts are rare if fewer steps have one: minimum probability or n-grams (llama.cpp#22506)
MAX_LOOPING_SHARE = 0.2  # share of answers that end in a loop, which is easy to draft (model-serving-minefield#108)
MIN_SPEED = 0.97  # speculation is too slow below this fraction of the speed without a draft (mlx-lm#1132: .65)
HEALTHY_RATE = 0.7  # acceptance rate of published heads at every position, assumed if nothing better is known
# The standard deviation across parts of a source is .22 for the demo pair's answers and .29 for uniform rates.
MAX_UNEVENNESS = 0.3
MIN_HEALTHY_DRAFTS = 100  # with fewer drafts, most faults go undetected (power: benchmarks/results)

HEALTHY = "healthy"
WIRED_WRONG = "wired wrong"
RUNS_OUT = "runs out"
LONGER = "falls with prompt length"
TOO_LONG = "K too large for the head"
NEVER = "never drafted"
RARELY = "drafts rarely"
LIMIT = "K is the limit"
WORSE = "worse than before"
LOOPS = "degenerate text"
COSTS = "fine but costs too much"
UNKNOWN = "cannot tell"
COLLAPSES = "acceptance collapses"
MISFIT = "n-grams do not fit these texts"


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """The result of a rule that fired.

    Args:
        says: what it means, in one sentence.
        check: what to look at next, as a noun phrase.
        position: position at which drafts run out, from 1; None for other findings.
        survival_if_fixed: assumed survival at each position once the fault is fixed; empty if unknown.
        supposed: that assumption in words, as a noun phrase.
    """

    verdict: str
    evidence: tuple[Evidence, ...]
    says: str
    check: str
    position: int | None = None
    survival_if_fixed: tuple[float, ...] = ()
    supposed: str = f"{HEALTHY_RATE:.0%} acceptance at every position"

    @property
    def title(self) -> str:
        return self.verdict[0].upper() + self.verdict[1:] + (f" at position {self.position}" if self.position else "")

    def __str__(self) -> str:
        return f"{self.title}: {self.evidence[0]}. {self.says} Check {self.check}."


def never_drafted(facts: Facts) -> Finding | None:
    """Fire if nothing was drafted (mlx-engine#280: the draft failed to load almost silently)."""
    counts = facts.counts
    if counts.drafts != 0 and counts.draft_tokens != 0:
        return None
    seen = () if counts.tokens is None else (Evidence("tokens generated", counts.tokens, share=False),)
    if not (counts.tokens or counts.requests_done or counts.steps):
        says = "Nothing was drafted, and it is unknown whether anything was generated."
        if counts.tokens == 0 or counts.requests_done == 0:
            says = "Nothing was generated: no request was answered in the period covered by these counts."
        return Finding(UNKNOWN, seen, says, "two readings, taken before and after requests like yours")
    if counts.tokens is not None and facts.steps < MIN_DRAFTS:
        return Finding(UNKNOWN, seen, "There are too few tokens to expect a draft.", "the counts after more requests")
    return Finding(
        NEVER,
        seen,
        "Nothing was drafted: the draft is not loaded or is disabled, or, with n-grams, found no match. The speed of "
        "this server is not a baseline: measure K = 0 on a server started without the speculative option.",
        "the startup log: a rejected draft (tokenizer, memory), K = 0, a misspelt option, or batches or images that "
        "disable drafting",
    )


def collapses(facts: Facts, fallen: Facts | None) -> Finding | None:
    """Fire if a stretch of the source, `fallen`, accepts far fewer drafts than the rest."""
    if fallen is None or facts.first is None or fallen.first is None:
        return None
    source = facts.counts.source
    fallen_source = fallen.counts.source
    rest = facts.first
    low = fallen.first
    says = f"The first position is accepted in {rest.value:.0%} of the drafts in {source}, but in only {low.value:.0%}"
    says += f" of those in {fallen_source}."
    if not facts.counts.positions:  # a log of averages
        rest, low = (Evidence("tokens per step", each.tokens_per_step or nan, share=False) for each in (facts, fallen))
        says = f"There are {rest.value:.2f} tokens per step in {source}, but only {low.value:.2f} in {fallen_source}."
    return Finding(
        COLLAPSES,
        (rest._replace(what=f"{rest.what}, {source}"), low._replace(what=f"{low.what}, {fallen_source}")),
        f"{says} All other findings are about {source}.",
        "what changed there: the draft or its cache, the context length, numerical overflow or the type of text",
    )


def wired_wrong(facts: Facts) -> Finding | None:
    """Fire if the first position is rarely accepted (vllm#50170: .036, healthy .751; vllm#56792: .009)."""
    counts = facts.counts
    first = facts.first
    later = facts.later
    if first is not None and first.of is None and not counts.published and len(counts.periods) < 2:
        return None  # one average may cover a single step
    if first is None or not first.high < MIN_FIRST_RATE or (later and later[0].low > MIN_SECOND_RATE):
        return None
    if facts.method == NGRAM:
        says = "N-grams in these texts are rarely followed by the same tokens as before."
        check = "longer n-grams, which match less often but more accurately, or a draft model"
        return Finding(MISFIT, (first, *later), says, check)
    return Finding(
        WIRED_WRONG,
        (first, *later),
        "Even a weak draft does better, so this draft's input must differ from what it was trained on.",
        "the head's layer ids, layout and anchor (they must match its config); quantised or missing weights in the "
        "head or its output layer; the tokenizer; the chat template",
        survival_if_fixed=tuple(HEALTHY_RATE**position for position in range(1, (len(counts.positions) or 3) + 1)),
    )


def runs_out(facts: Facts) -> Finding | None:
    """Fire if conditional acceptance drops by 40 % or more at one position."""
    reached = facts.reached
    for position, (before, here) in enumerate(pairwise(facts.rates), start=2):
        if here.high < CLIFF_RATIO * before.low:
            rate = sum(reached[1:position]) / sum(reached[: position - 1])
            survival = [count / reached[0] for count in reached[1:position]]
            survival += [survival[-1] * rate**more for more in range(1, len(reached) - position + 1)]
            return Finding(
                RUNS_OUT,
                (before, here),
                "The acceptance rate drops abruptly, which text alone does not explain.",
                "the draft's window, block size and position limit; how its output is fed back as input",
                position,
                tuple(survival),
                f"{rate:.0%} acceptance from there on, as at the positions before",
            )
    return None


def too_long(facts: Facts) -> Finding | None:
    """Fire if later positions are accepted far less often than the first, or if nearly all tokens are rejected."""
    counts = facts.counts
    drafts = facts.steps
    reached = facts.reached
    accepted = counts.accepted_tokens or 0
    drafted = counts.draft_tokens or 0
    if MIN_DRAFTS <= drafts <= accepted < MIN_USED_SHARE * drafted:
        seen = (
            facts.drafted,
            Evidence("accepted per draft", accepted / drafts, share=False),
            Evidence("drafted", drafted / drafts, share=False),
        )
        check = f"K = {ceil(2 * accepted / drafts)}"
        if counts.engine == LLAMA_CPP and facts.method != NGRAM:
            check += ", or a minimum probability (--spec-draft-p-min 0.75)"
        return Finding(TOO_LONG, seen, "The draft is fine, but nearly all of its tokens are rejected.", check)
    if facts.halves is None:
        return None
    first, last = facts.halves
    if not last.high < FADE_RATIO * first.low:
        return None
    longest = len(reached) - 1
    middle = len(reached) // 2
    share = sum(reached[: middle + 1]) / sum(reached)
    return Finding(
        TOO_LONG,
        (first, last),
        f"K = {longest} is too large for the head.",
        f"how many tokens it was trained to draft; K = {middle} would keep {share:.0%} of the tokens per step",
    )


def falls_with_length(facts: Facts) -> Finding | None:
    """Fire if acceptance with long prompts is significantly lower, by a third or more, than with short ones."""
    comparison = facts.long_prompts
    if comparison is None or comparison.p_value > RULE_FALSE_ALARM:
        return None
    seen = (
        Evidence(f"accepted per step, prompts up to {comparison.middle:,} tokens", comparison.short, share=False),
        Evidence("accepted per step, longer prompts", comparison.long, share=False),
        Evidence("probability of such a difference by chance", comparison.p_value),
    )
    return Finding(
        LONGER,
        seen,
        "Acceptance falls with prompt length.",
        "the draft's context limit and RoPE scaling; its start position (off by one?); its attention window",
        survival_if_fixed=(comparison.short,),
        supposed="the acceptance rate of short prompts",
    )


def worse(facts: Facts) -> Finding | None:
    """Fire if fewer tokens are accepted than in another period, or than with a smaller K (vllm#41834)."""
    counts = facts.counts
    earlier = facts.earlier
    if earlier is None or facts.yields is None:
        return None
    before, now = facts.yields
    spread = float(np.hypot(now.error, (1 - MIN_WORSENING) * before.error))
    if now.mean + STANDARD_ERRORS * spread >= (1 - MIN_WORSENING) * before.mean:
        return None
    by_position = bool(earlier.positions and counts.positions)
    what = "accepted per draft" if by_position else "drafted tokens accepted"
    seen = []
    for when, (mean, error) in (("before", before), ("now", now)):
        margin = STANDARD_ERRORS * error
        low = max(mean - margin, 0.0)
        high = mean + margin
        seen.append(Evidence(f"{what}, {when}", mean, low, high, share=not by_position))
    verdict = WORSE
    says = "Fewer tokens are accepted than before."
    check = "what changed: the engine version, sampling, thinking mode, type of text or prompt length"
    k = len(counts.positions)
    earlier_k = len(earlier.positions)
    if by_position and earlier_k < k:
        verdict = TOO_LONG
        says = f"Longer drafts (K = {k} instead of {earlier_k}) yield less in total."
        check = f"how many tokens it was trained to draft, and its block size; or go back to K = {earlier_k}"
    survival = tuple(count / (earlier.drafts or 1) for count in earlier.positions[:k])
    return Finding(
        verdict, tuple(seen), says, check, survival_if_fixed=survival, supposed="the earlier acceptance rate"
    )


def degenerate(facts: Facts) -> Finding | None:
    """Fire if many answers end in a loop."""
    known = [total.looped for total in facts.counts.totals if total.looped is not None]
    loops = known.count(True)
    if loops < max(MAX_LOOPING_SHARE * len(known), 1):
        return None
    return Finding(
        LOOPS,
        (Evidence("answers that end in a loop", loops / len(known), of=len(known)),),
        "Loops are almost always predicted correctly, so these counts describe loops, not the draft.",
        "the answers themselves; measure with other prompts, or without ignore_eos",
    )


def too_slow(facts: Facts, speed: Estimate | None) -> Finding | None:
    """Fire if speculation is slower than no speculation, whatever the acceptance rate."""
    if speed is None or (speed.value if speed.high is None else speed.high) >= MIN_SPEED:
        return None
    low, high = (nan, nan) if speed.low is None or speed.high is None else (speed.low, speed.high)
    seen = [Evidence("speed relative to no speculation", speed.value, low, high, share=False)]
    if (tokens := facts.tokens_per_step) is not None:
        seen.append(Evidence("tokens per step", tokens, share=False))
        seen.append(Evidence("step time relative to one without a draft", tokens / speed.value, share=False))
    check = "a smaller draft or K, or no draft: mixtures of experts and large batches make wide passes expensive"
    return Finding(COSTS, tuple(seen), "The extra tokens per step do not make up for the longer steps.", check)


def drafts_rarely(facts: Facts) -> Finding | None:
    """Fire if few steps have a draft, or if drafts end early."""
    counts = facts.counts
    coverage = facts.counts.coverage
    short = counts.censored and (counts.drafts or 0) >= MIN_DRAFTS
    rare = coverage is not None and coverage < MIN_DRAFTED_SHARE and (counts.all_steps or 0) >= MIN_DRAFTS
    if not short and not rare:
        return None
    seen = []
    if counts.fill_ratio is not None:
        seen.append(Evidence("average draft length relative to K", counts.fill_ratio))
    if coverage is not None:
        seen.append(Evidence("steps with a draft", coverage))
    seen.append(facts.drafted)
    checks = []
    if facts.method != NGRAM:
        checks.append(
            "the counts with --spec-draft-p-min 0" if counts.engine == LLAMA_CPP else "what ends drafts early"
        )
    if facts.method in (None, NGRAM):
        checks.append("n-grams, which match only in some texts")
    return Finding(RARELY, tuple(seen), "Few tokens are drafted, but these may be good.", "; or ".join(checks))


def limited(facts: Facts) -> Finding | None:
    """Fire if nearly all drafted tokens are accepted (llama.cpp#24508: .97 with a minimum probability of .85)."""
    if not facts.whole.low >= LIMITED_RATE:
        return None
    return Finding(
        LIMIT,
        (facts.whole,),
        "The draft could yield more: it is limited by K or by a minimum probability.",
        "a larger K or a lower minimum probability; also the answers, because loops look the same in the counts",
    )


def no_fault(facts: Facts) -> Finding:
    """Report that no rule fired, or that there are too few counts to tell."""
    counts = facts.counts
    first = facts.first
    later = facts.later
    if first is not None and not counts.published:
        if first.of is None:
            average = Evidence("tokens per step on average", counts.mean_length or nan, share=False)
            says = "These are averages over an unknown number of drafts, without per-position counts."
            return Finding(UNKNOWN, (average,), says, "metrics, or answers that include counts")
        few = first.of < MIN_HEALTHY_DRAFTS
        if few or first.low <= MIN_FIRST_RATE:
            more = max(facts.more_drafts or 0, MIN_HEALTHY_DRAFTS if few else 0)
            enough = f"about {more:,} would be enough" if more else "the rate is right at the threshold"
            says = f"{first.of:,} drafts are too few: {enough}."
            return Finding(UNKNOWN, (first,), says, "the counts after more requests")
    if first is not None and not counts.positions:  # drafted tokens give a lower bound on the first position's share
        first = facts.drafted if counts.draft_tokens else None
    if first is None or not (counts.positions or first.low > MIN_FIRST_RATE):
        says = "These counts are not broken down by position."
        return Finding(UNKNOWN, (), says, "metrics, or answers that include counts")
    if facts.unevenness > MAX_UNEVENNESS:
        seen = Evidence("standard deviation of the first position's rate across parts of the source", facts.unevenness)
        says = "Parts of the source differ more than texts usually do, so no single verdict fits all of them."
        check = "each part separately: models, drafts or types of request may differ"
        return Finding(UNKNOWN, (first, seen), says, check)
    says = "Nothing in the counts looks wrong."
    if later and first.high < later[0].low:
        says = (
            "The first position is accepted less often than the later ones combined, which is normal: drafts begin "
            "where the text is hard."
        )
    if facts.more_later_drafts is not None:
        says += f" Judging the later positions requires more drafts: about {facts.more_later_drafts:,} would be enough."
    return Finding(HEALTHY, (first, *later), says, "the cost of a step: --timed or --profile shows which K is fastest")
