"""Tokens per step of draft chains, estimated from a server's counts: a chain of k yields 1 + S_1 + … + S_k.

S_i, the survival, is the share of drafts in which position i was accepted. Counts at K slightly underestimate the
tokens of shorter chains; step-by-step records do not. Shapes: K = positions, m = requests, r = resamples.
"""

from dataclasses import dataclass, replace

import numpy as np

from sequoia_core.acceptance.bootstrap import (
    CONFIDENCE_LEVEL,
    RESAMPLES,
    Estimate,
    estimate,
    interval,
    resample_prompts,
    wilson_interval,
)
from sequoia_core.acceptance.conditions import TOPK
from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.trees.replay import replay_while_growing

from .counts import FULL_DRAFTS, MAX_COUNT, ServerCounts, ServerRequest, counts_from_survival
from .records import counts_from_rates

MATCH = "match"
REJECTION = "rejection"
RULES = (MATCH, REJECTION)  # how an engine accepts a draft token
VECTOR_POSITIONS = 16  # draft length for which a measured vector is converted to counts
COMPARED_K = 4  # draft length at which the two rules are compared


@dataclass(frozen=True, slots=True, eq=False)
class ChainAcceptance:
    """Tokens per step of draft chains on the text that a server generated.

    Args:
        survival, low, high: float64 [K], share of drafts in which each position was accepted, and its 95 % interval.
        tokens_per_step: float64 [K + 1], for chains of 0 to K draft tokens; the first value is 1.
        samples: float64 [r, K + 1], `tokens_per_step` in resamples of the measurement.
        by_request: whether whole requests are resampled; otherwise, drafts are resampled as if independent.
        fitted: the acceptance rate fitted to totals, the same at every position; None if positions were counted.
    """

    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tokens_per_step: np.ndarray
    samples: np.ndarray
    by_request: bool
    counts: ServerCounts
    notes: tuple[str, ...]
    fitted: float | None = None

    @property
    def longest(self) -> int:
        """K, the draft length of the server."""
        return len(self.survival)

    @property
    def current(self) -> int | None:
        """The server's draft length; None if positions were not counted, because drafts may then end early."""
        return self.longest if self.fitted is None else None

    @property
    def has_interval(self) -> bool:
        """Whether there are resamples; published rates and single requests have none."""
        return len(self.samples) > 1

    @property
    def drafted_share(self) -> float:
        """Share of steps with a draft; 1 if nearly all have one, or if it is unknown."""
        return self.counts.drafted_share

    def tokens(self, k: int) -> Estimate:
        """Return the tokens per step of a chain of k tokens, with a confidence interval."""
        if not 0 <= k <= self.longest:
            raise ValueError(f"k: found {k}, expected 0 to {self.longest}, the server's draft length")
        return estimate(float(self.tokens_per_step[k]), self.samples[:, k])

    @property
    def survived(self) -> list[Estimate]:
        """Survival at each position, with its interval if there is one."""
        bounds = (self.low.tolist(), self.high.tolist()) if self.has_interval else [[None] * self.longest] * 2
        return list(map(Estimate, self.survival.tolist(), *bounds))

    @property
    def guess_accuracy(self) -> float:
        """Share of the draft's guesses that were right, the closest equivalent of a vector's p1."""
        counts = self.counts
        if self.fitted is not None:
            return self.fitted
        assert counts.drafts is not None and counts.accepted_tokens is not None
        return counts.accepted_tokens / (counts.accepted_tokens + counts.drafts - counts.positions[-1])

    def to_matrix(self) -> AcceptanceMatrix:
        """Return the acceptance of rank 1 at depths 1 to K, followed by a row of zeros."""
        counts = self.counts
        assert counts.drafts is not None and self.fitted is None, "totals contain no positions"
        reached = np.array([counts.drafts, *counts.positions[:-1], 0])
        probs = np.array([*counts.positions, 0]) / np.maximum(reached, 1)
        names = ("engine", "model", "source", "draft_tokens", "tokens", "requests_done", "drafter")
        meta = {name: getattr(counts, name) for name in names} | {"settings": "unknown"}
        meta |= {name: getattr(self, name).tolist() for name in ("tokens_per_step", "survival", "low", "high")}
        meta["interval"] = "requests" if self.by_request else "drafts, as if independent"
        if counts.published:
            meta |= {"published": counts.source, "interval": "none"}
        trials = None if counts.published else reached[:, None]
        return AcceptanceMatrix(probs[:, None], trials=trials, meta=meta)


def counts_from_matrix(matrix: AcceptanceMatrix, rates: str | None = None) -> ServerCounts:
    """Return the counts stored in a matrix by `to_matrix`, which does not include requests.

    A matrix without trials contains published rates of rank 1; `rates`, one of `RATE_TYPES`, overrides their type.
    """
    source = matrix.meta.get("published")
    if len(matrix) == 1 and matrix.trials is None and isinstance(source, str):
        return _published_counts(matrix, source[:400], rates)
    if rates is not None:
        raise ValueError("--rates: found a server's counts, expected per-position rates")
    if len(matrix) > 1 or matrix.trials is None or not matrix.trials[0, 0]:
        raise ValueError(f"found a matrix of {len(matrix)} ranks, expected only rank 1, with its trials")
    drafted = slice(-1 if not matrix.trials[-1, 0] else None)  # without the final row of zeros
    positions = np.rint(matrix.probs[drafted, 0] * matrix.trials[drafted, 0]).astype(int).tolist()
    saved = [matrix.meta.get(name) for name in ("draft_tokens", "tokens", "requests_done")]
    draft_tokens, tokens, requests = (x if type(x) is int and 0 <= x <= MAX_COUNT else None for x in saved)
    return ServerCounts(
        str(matrix.meta.get("engine", "unknown"))[:40],
        "a saved matrix",
        int(matrix.trials[0, 0]),
        draft_tokens,
        sum(positions),
        tuple(positions),
        tokens,
        requests,
        model=str(matrix.meta.get("model", ""))[:4096],
        notes=("A saved matrix contains per-position counts, but no requests.",),
        drafter=str(matrix.meta.get("drafter", ""))[:40],
    )


def counts_from_vector(
    vector: AcceptanceVector, engine: str, rule: str = MATCH, *, longest: int = VECTOR_POSITIONS
) -> ServerCounts:
    """Return the counts of a server that drafts `longest` tokens per step on a vector's texts.

    Args:
        rule: "match" if the engine drafts greedily and accepts a token if the target sampled the same one, as vLLM,
            SGLang and llama.cpp's server do by default; "rejection" if it samples the draft and accepts with
            probability min(1, p / q).
    """
    if rule not in RULES:
        raise ValueError(f"rule: found {rule[:40]!r}, expected one of {', '.join(RULES)}")
    known = vector.holds_for
    ranks = vector.prompt_ranks
    greedy = known is not None and known.temperature == 0
    by_match = known is not None and known.verifier == TOPK
    hits = vector.prompt_matched if rule == MATCH and not by_match and not greedy else ranks
    if known is None or ranks is None or hits is None or (rule == REJECTION and by_match and not greedy):
        wanted = f"{TOPK} or with this version" if rule == MATCH else "sequoia"
        raise ValueError(
            f"found a vector without the outcome of {rule} at each position, expected one measured with "
            f"--verifier {wanted}"
        )
    requests = tuple(_replay_text(row == 1, longest) for row in hits if len(row))
    lengths = np.array([length for request in requests for length in request.accepted])
    positions = tuple(int((lengths >= position).sum()) for position in range(1, longest + 1))
    sampling = known.sampling.removesuffix(f", {known.verifier}")
    return ServerCounts(
        engine,
        f"a vector measured at {sampling}, as accepted by {rule}",
        len(lengths),
        longest * len(lengths),
        sum(positions),
        positions,
        requests=requests,
        ordered=True,
        model=f"{known.target} ← {known.draft}",
    )


def other_rule_note(vector: AcceptanceVector, rule: str) -> str:
    """Return a sentence on the tokens per step that the other rule would yield; empty if unknown."""
    (other,) = set(RULES) - {rule}
    try:
        here, there = (counts_from_vector(vector, "", each, longest=COMPARED_K).drafts or 1 for each in (rule, other))
    except ValueError:
        return ""
    gain = f"{here / there:.2f} times the tokens per step at K = {COMPARED_K}"
    return f"With {other} instead of {rule}, the same texts yield {gain}."


def _replay_text(right: np.ndarray, longest: int) -> ServerRequest:
    """Return the steps for one text; `right`, bool [N], says whether each token would be accepted if drafted."""
    accepted: list[int] = []
    stops = np.append(np.flatnonzero(~right), len(right))
    start = 0
    while start < len(right):
        length = min(int(stops[np.searchsorted(stops, start)]) - start, longest)
        accepted.append(length)
        start += length + 1
    return ServerRequest(tuple(accepted), (longest,) * len(accepted), len(right))


def _published_counts(matrix: AcceptanceMatrix, source: str, rates: str | None) -> ServerCounts:
    given = np.trim_zeros(matrix.probs[:, 0], "b")
    counts = counts_from_survival([], source)
    if len(given):
        counts = counts_from_rates(given.tolist(), rates or "conditional")
    engine, model = (str(matrix.meta.get(name, "unknown"))[:4096] for name in ("engine", "model"))
    drafter = " ".join(str(matrix.meta.get(name, "")) for name in ("pair", "head")).strip()[:400]
    note = f"Published rates of rank 1, for chains only ({source}): without counts, there is no interval."
    return replace(counts, source=source, engine=engine, model=model, drafter=drafter, notes=(note,))


def chain_acceptance(counts: ServerCounts, *, new_tokens: int | None = None, resample: bool = True) -> ChainAcceptance:
    """Return the tokens per step of chains from a server's counts, with intervals unless `resample` is False.

    `new_tokens` is the length of every answer, for records without lengths: their last step may run past the end.
    """
    _check_plannable(counts)
    drafts = counts.drafts
    assert drafts is not None
    survival = np.array(counts.positions) / drafts
    notes = list(counts.notes)
    picks = None
    if counts.published or len(counts.requests) == 1 or not resample:
        again = survival[None]
        low = high = survival
        if counts.requests:
            notes.append("A single request gives no interval over texts: have the server answer more requests.")
    elif counts.requests:
        picks = resample_prompts(len(counts.requests))
        passed = np.array([_count_passed(request, len(survival)) for request in counts.requests])
        drafts_again = np.maximum(picks @ np.array([len(request.accepted) for request in counts.requests]), 1)
        again = (picks @ passed) / drafts_again[:, None]
        low, high = interval(again)
    else:
        again = _resample_drafts(survival, drafts)
        low, high = wilson_interval(survival, drafts, CONFIDENCE_LEVEL)
        notes.append(
            "The intervals are too narrow: they treat drafts as independent, but drafts in one text are correlated."
        )
    share = counts.drafted_share
    replayed = counts.ordered and share == 1  # with n-grams, steps without a draft are not recorded
    if replayed:
        tokens, samples = _replay_chains(counts.requests, len(survival), new_tokens, picks)
        if new_tokens is None and any(request.tokens is None for request in counts.requests):
            notes.append("The lengths of the answers are unknown: tokens past their ends count, in about 2% of steps.")
    else:
        tokens, samples = (survival_tokens(part, share) for part in (survival, again))
        if len(survival) > 1:
            notes.append(
                f"Counted at K = {len(survival)}: shorter chains yield slightly more than shown (2 to 6% in "
                "measurements at K = 8)."
            )
    if not replayed:
        notes += coverage_notes(counts)
    return ChainAcceptance(survival, low, high, tokens, samples, picks is not None, counts, tuple(notes))


def coverage_notes(counts: ServerCounts) -> list[str]:
    """Return a note on the share of steps with a draft, unless nearly all have one."""
    if counts.drafted_share < 1:
        return [f"Only {counts.drafted_share:.0%} of steps have a draft; the others yield one token."]
    return [] if counts.coverage else ["It is unknown whether every step had a draft; this is assumed."]


def _check_plannable(counts: ServerCounts) -> None:
    if counts.drafts == 0:
        raise ValueError("found no drafts, expected counts from a server that speculated")
    if not counts.positions or not counts.drafts:
        raise ValueError(f"found only {counts.source} from {counts.engine}, expected per-position counts to plan from")
    if counts.censored:
        raise ValueError(
            f"found drafts with an average length of {counts.fill_ratio:.0%} of K = {len(counts.positions)}, expected "
            f"at least {FULL_DRAFTS:.0%}: positions that were never drafted count as rejected (measure without a "
            "minimum probability or n-grams, which end drafts early)"
        )


def tokens_per_step(counts: ServerCounts) -> float | None:
    """Return the tokens per step at the current K: from the plan if there is one, otherwise from the totals."""
    try:
        return float(chain_acceptance(counts, resample=False).tokens_per_step[-1])
    except ValueError:
        return counts.tokens_per_step


def _count_passed(request: ServerRequest, longest: int) -> np.ndarray:
    """Return the number of a request's drafts in which each position was accepted, int64 [K]."""
    return (np.array(request.accepted, dtype=np.int64)[:, None] >= np.arange(1, longest + 1)).sum(axis=0)


def _resample_drafts(survival: np.ndarray, drafts: int) -> np.ndarray:
    """Resample drafts as if they were independent; return the survival in each resample, float64 [r, K]."""
    ends = -np.diff(np.concatenate([[1.0], survival, [0.0]]))  # share of drafts with 0, 1, …, K tokens accepted
    drawn = np.random.default_rng(0).multinomial(drafts, ends / ends.sum(), size=RESAMPLES)
    return drawn[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:] / drafts


def survival_tokens(survival: np.ndarray, share: float) -> np.ndarray:
    """Return the tokens per step of chains of 0 to K, float64 [..., K + 1]."""
    start = np.zeros((*survival.shape[:-1], 1))
    return 1.0 + share * np.concatenate([start, survival.cumsum(axis=-1)], axis=-1)


def _replay_chains(
    requests: tuple[ServerRequest, ...], longest: int, new_tokens: int | None, picks: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens per step of chains of 0 to K on the recorded texts, [K + 1], and in resamples, [r, K + 1]."""
    texts = [_guesses(request, new_tokens) for request in requests]
    answered = [index for index, text in enumerate(texts) if len(text)]
    if not answered:
        raise ValueError("found only answers of one token, expected answers of at least two tokens")
    rows = [texts[index] for index in answered]
    counts = np.array([len(row) for row in rows])
    vector = AcceptanceVector(
        np.array([np.concatenate(rows).mean()]),
        prompt_sums=np.array([[row.sum()] for row in rows]),
        prompt_trials=counts,
        prompt_ranks=tuple(rows),
    )
    chain = np.arange(-1, longest)
    replays = replay_while_growing(chain, np.minimum(chain + 2, 1), range(1, longest + 2), vector)
    assert replays is not None  # the vector stores ranks
    steps = np.array([replay.steps for replay in replays])  # [K + 1, m]
    tokens = counts.sum() / steps.sum(axis=1)
    if picks is None:
        return tokens, tokens[None, :]
    picks = picks[:, answered]
    return tokens, np.maximum(picks @ counts, 1)[:, None] / np.maximum(picks @ steps.T, 1)


def _guesses(request: ServerRequest, new_tokens: int | None) -> np.ndarray:
    """Return, for each token after an answer's first, 1 if the draft's guess is right and 0 if it is wrong."""
    accepted = np.array(request.accepted, dtype=np.int64)
    drafted = np.array(request.drafted, dtype=np.int64)
    ends = np.cumsum(accepted + 1) - 1
    right = np.ones(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.int64)
    right[ends[accepted < drafted]] = 0
    length = request.tokens
    if length is None and new_tokens is not None:
        length = new_tokens - 1
    return right[:length]
