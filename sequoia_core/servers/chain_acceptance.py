"""What chains of drafted tokens yield by a server's counts: a chain of k yields 1 + S_1 + … + S_k tokens per step.

S_i, survival, is the share of drafts in which position i was accepted; counts at K make shorter chains look a little
worse, records by step do not. Shapes: K = positions, m = requests, r = resamples.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..design.acceptance import AcceptanceVector
from ..design.acceptance_matrix import AcceptanceMatrix
from ..design.bootstrap import LEVEL, RESAMPLES, Estimate, estimate, interval, resampled, wilson_interval
from ..design.conditions import TOPK
from ..design.replay import replay_while_growing
from .counts import MAX_COUNT, RATES, UNCENSORED, ServerCounts, ServerRequest, counts_of_survival
from .records import counts_of_rates

RULES = MATCH, REJECTION = ("match", "rejection")  # by which engines accept a drafted token
CARRIED_POSITIONS = 16  # positions of a draft that a measured vector is carried over to
SHOWN_K = 4  # at which rules are compared


@dataclass(frozen=True, slots=True, eq=False)
class ChainAcceptance:
    """What chains yield on the text that a server answered.

    Args:
        survival, low, high: float64 [K], share of drafts in which each position was accepted, with its 95 % interval.
        tokens_per_step: float64 [K + 1], of chains of 0 to K drafted tokens; [0] is 1.
        samples: float64 [r, K + 1], the same for resamples of the measurement.
        by_request: whether whole requests are resampled; else drafts, as if independent.
        replayed: whether chains shorter than K are exact, not read from counts at K.
        coverage: share of steps that have a draft; None where the source does not tell, and then taken as 1.
        trials: requests or drafts, whichever are resampled.
    """

    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tokens_per_step: np.ndarray
    samples: np.ndarray
    by_request: bool
    replayed: bool
    coverage: float | None
    trials: int
    counts: ServerCounts
    notes: tuple[str, ...]

    @property
    def longest(self) -> int:
        """K."""
        return len(self.survival)

    @property
    def has_interval(self) -> bool:
        """Whether there is a sample to resample: not of published rates, nor of one request."""
        return len(self.samples) > 1

    @property
    def drafted_share(self) -> float:
        """Share of steps that have a draft; 1 where nearly all do or it is unknown."""
        return 1.0 if self.coverage is None or self.coverage >= UNCENSORED else self.coverage

    def tokens(self, k: int) -> Estimate:
        """Return tokens per step of a chain of k, with its interval."""
        if not 0 <= k <= self.longest:
            raise ValueError(f"k: found {k}, expected 0 to {self.longest}: the server drafted no more")
        if not self.has_interval:
            return Estimate(float(self.tokens_per_step[k]), None, None)
        return estimate(float(self.tokens_per_step[k]), self.samples[:, k])

    @property
    def guessed(self) -> float:
        """Share of tokens that the draft guessed, of those where it tried: the nearest to a p1 by position."""
        counts = self.counts
        assert counts.drafts is not None and counts.accepted_tokens is not None
        return counts.accepted_tokens / (counts.accepted_tokens + counts.drafts - counts.positions[-1])

    def to_matrix(self) -> AcceptanceMatrix:
        """Return acceptance by depth, of rank 1 alone, up to K, ended by a row of 0."""
        assert self.counts.drafts is not None
        reached = np.array([self.counts.drafts, *self.counts.positions[:-1], 0])
        probs = np.array([*self.counts.positions, 0]) / np.maximum(reached, 1)
        over = "requests" if self.by_request else "drafts, as if independent"
        published = {"published": self.counts.source, "interval": "none"} if self.counts.shares else {}
        meta = {
            "engine": self.counts.engine, "model": self.counts.model, "source": self.counts.source,
            "settings": "unknown", "draft_tokens": self.counts.draft_tokens, "tokens": self.counts.tokens,
            "requests_done": self.counts.requests_done, "tokens_per_step": self.tokens_per_step.tolist(),
            "survival": self.survival.tolist(), "low": self.low.tolist(), "high": self.high.tolist(), "interval": over,
            "drafter": self.counts.drafter,
        }  # fmt: skip
        trials = None if published else reached[:, None]
        return AcceptanceMatrix(probs[:, None], trials=trials, meta=meta | published)


def counts_of_matrix(matrix: AcceptanceMatrix, rates: str | None = None) -> ServerCounts:
    """Return the counts by position behind a matrix that `to_matrix` made; requests are not kept.

    Published rates, of rank 1 alone, come as such a matrix without trials; `rates` (of `counts.RATES`) says what
    they are, if not what a matrix holds.
    """
    source = matrix.meta.get("published")
    if len(matrix) == 1 and matrix.trials is None and isinstance(source, str):
        return _published_counts(matrix, source[:400], rates)
    if rates is not None:
        raise ValueError("found counts of a server, expected rates by position alone for --rates")
    if len(matrix) > 1 or matrix.trials is None or not matrix.trials[0, 0]:
        raise ValueError(f"found a matrix of {len(matrix)} ranks, expected rank 1 alone with its trials, of a server")
    drafted = slice(-1 if not matrix.trials[-1, 0] else None)  # without the row that ends it
    positions = np.rint(matrix.probs[drafted, 0] * matrix.trials[drafted, 0]).astype(int).tolist()
    kept = [matrix.meta.get(name) for name in ("draft_tokens", "tokens", "requests_done")]
    known = [value if type(value) is int and 0 <= value <= MAX_COUNT else None for value in kept]
    return ServerCounts(
        str(matrix.meta.get("engine", "unknown"))[:40], "a saved matrix", int(matrix.trials[0, 0]), known[0],
        sum(positions), tuple(positions), known[1], known[2], model=str(matrix.meta.get("model", ""))[:4096],
        notes=("A saved matrix: counts by position, requests not kept.",),
        drafter=str(matrix.meta.get("drafter", ""))[:40],
    )  # fmt: skip


def counts_of_vector(
    vector: AcceptanceVector, engine: str, rule: str = MATCH, *, longest: int = CARRIED_POSITIONS
) -> ServerCounts:
    """Return what a server would count on the texts of a vector, with drafts of `longest` tokens.

    Args:
        rule: "match" where the engine drafts greedily and accepts what the target drew too, as vLLM, SGLang and
            llama.cpp's server do by default; "rejection" where it draws its draft and accepts by p / q.
    """
    if rule not in RULES:
        raise ValueError(f"rule: found {rule[:40]!r}, expected one of {', '.join(RULES)}")
    known, kept = vector.holds_for, vector.prompt_ranks
    greedy = known is not None and known.temperature == 0
    own = None if known is None else MATCH if known.verifier == TOPK else REJECTION
    hits = vector.prompt_matched if rule == MATCH and own != MATCH and not greedy else kept
    if known is None or kept is None or hits is None or (rule == REJECTION and own == MATCH and not greedy):
        wanted = "measured with --verifier " + (f"{TOPK}, or by this version" if rule == MATCH else "sequoia")
        raise ValueError(f"found a vector without the outcome of {rule} at each position, expected one {wanted}")
    requests = tuple(_steps_of_text(row == 1, longest) for row in hits if len(row))
    taken = np.array([length for request in requests for length in request.accepted])
    positions = tuple(int((taken >= position).sum()) for position in range(1, longest + 1))
    how = known.sampling.removesuffix(f", {known.verifier}")
    return ServerCounts(
        engine, f"a vector measured at {how}, as accepted by {rule}", len(taken), longest * len(taken), sum(positions),
        positions, requests=requests, ordered=True, model=f"{known.target} ← {known.draft}",
    )  # fmt: skip


def other_rule_note(vector: AcceptanceVector, rule: str) -> str:
    """Say how many tokens per step the other rule would yield; "" where that is not known."""
    (other,) = set(RULES) - {rule}
    try:
        here, there = (counts_of_vector(vector, "", each, longest=SHOWN_K).drafts or 1 for each in (rule, other))
    except ValueError:
        return ""
    gain = f"{here / there:.2f} times the tokens per step at K = {SHOWN_K}"
    return f"With {other} in place of {rule} the same texts yield {gain}."


def _steps_of_text(right: np.ndarray, longest: int) -> ServerRequest:
    """Return the steps of a text, bool [N]: whether each token would be accepted from a draft."""
    accepted, at, stops = [], 0, np.append(np.flatnonzero(~right), len(right))
    while at < len(right):
        length = min(int(stops[np.searchsorted(stops, at)]) - at, longest)
        accepted.append(length)
        at += length + 1
    return ServerRequest(tuple(accepted), (longest,) * len(accepted), len(right))


def _published_counts(matrix: AcceptanceMatrix, source: str, rates: str | None) -> ServerCounts:
    given = np.trim_zeros(matrix.probs[:, 0], "b")
    notes = [f"Published rates of rank 1 alone, for chains only ({source}): no counts, so no interval."]
    if rates is None and len(given) > 2 and (np.diff(given) <= 0).all() and given[-1] < given[0] / 2:
        notes.append(
            f"The rates fall from {given[0]:.3g} to {given[-1]:.3g}, as survival by position does: rates given the "
            "position before, as which they are read, seldom halve. --rates survival takes them as survival."
        )
    counts = counts_of_rates(given.tolist(), rates or RATES[1]) if len(given) else counts_of_survival([], source)
    engine, model = (str(matrix.meta.get(name, "unknown"))[:4096] for name in ("engine", "model"))
    drafter = " ".join(str(matrix.meta.get(name, "")) for name in ("pair", "head"))[:400]
    return replace(counts, source=source, engine=engine, model=model, drafter=drafter, notes=tuple(notes))


def chain_acceptance(counts: ServerCounts, *, new_tokens: int | None = None, resample: bool = True) -> ChainAcceptance:
    """Work out what chains yield from a server's counts, with intervals unless `resample` is False.

    `new_tokens` is what every request generated, where records by step do not tell; steps go a little past the end.
    """
    if counts.drafts == 0:
        raise ValueError("found no drafts counted, expected a server that speculated")
    if not counts.positions or not counts.drafts:
        raise ValueError(f"found {counts.source} of {counts.engine} alone, expected counts by position to plan from")
    if counts.censored:
        raise ValueError(
            f"found drafts filled to {counts.filled:.0%} of K = {len(counts.positions)}, expected at least "
            f"{UNCENSORED:.0%}: positions that were never drafted count as refused, so nothing is planned (a minimum "
            "probability or n-grams end drafts early: measure without)"
        )
    survival = np.array(counts.positions) / counts.drafts
    notes = list(counts.notes)
    coverage = counts.coverage
    if counts.shares or len(counts.requests) == 1 or not resample:
        trials, picks, again, low, high = counts.drafts, None, survival[None], survival, survival
        notes += ["One request has no interval over texts: let the server answer more."] * len(counts.requests)
    elif len(counts.requests) > 1:
        trials = len(counts.requests)
        picks = resampled(trials)
        passed = np.array([_passed(request, len(survival)) for request in counts.requests])
        drafts = np.maximum(picks @ np.array([len(request.accepted) for request in counts.requests]), 1)
        again = (picks @ passed) / drafts[:, None]
        low, high = interval(again)
    else:
        trials, picks = counts.drafts, None
        again = _redrawn(survival, trials)
        low, high = wilson_interval(survival, trials, LEVEL)
        notes.append("Intervals take drafts as independent; those of one text resemble each other, so they are narrow.")
    share = 1.0 if coverage is None or coverage >= UNCENSORED else coverage
    tokens, samples = (_yields(part, share) for part in (survival, again))
    replayed = counts.ordered and share == 1  # n-grams leave no record of the steps without a draft
    if replayed:
        tokens, samples = _replayed(counts.requests, len(survival), new_tokens, picks)
        if new_tokens is None and any(request.tokens is None for request in counts.requests):
            notes.append("Records without the answers' lengths: tokens past their ends count too, about 2% of steps.")
    elif len(survival) > 1:
        notes.append(
            f"Counted at K = {len(survival)}: shorter chains yield a little more than shown (seen: 2 to 6% at K = 8)."
        )
    if share < 1:
        notes.append(f"Only {share:.0%} of steps have a draft; the others yield one token.")
    elif coverage is None and not replayed:
        notes.append("Whether every step had a draft is not told; that is assumed.")
    return ChainAcceptance(
        survival, low, high, tokens, samples, picks is not None, replayed, coverage, trials, counts, tuple(notes)
    )


def tokens_per_step(counts: ServerCounts) -> float | None:
    """Return the tokens per step at the present K, as a plan has them; where nothing can be planned, by the totals."""
    try:
        return float(chain_acceptance(counts, resample=False).tokens_per_step[-1])
    except ValueError:
        return counts.tokens_per_step


def _passed(request: ServerRequest, longest: int) -> np.ndarray:
    """Return in how many drafts of a request each position was accepted, int64 [K]."""
    return (np.array(request.accepted, dtype=np.int64)[:, None] >= np.arange(1, longest + 1)).sum(axis=0)


def _redrawn(survival: np.ndarray, drafts: int) -> np.ndarray:
    """Return survival in resamples of independent drafts, float64 [r, K]."""
    ends = -np.diff(np.concatenate([[1.0], survival, [0.0]]))  # how far a draft gets: 0, 1, …, K
    drawn = np.random.default_rng(0).multinomial(drafts, ends / ends.sum(), size=RESAMPLES)
    return drawn[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:] / drafts


def _yields(survival: np.ndarray, share: float) -> np.ndarray:
    """Return tokens per step of chains of 0 to K, float64 [..., K + 1]."""
    start = np.zeros((*survival.shape[:-1], 1))
    return 1.0 + share * np.concatenate([start, survival.cumsum(axis=-1)], axis=-1)


def _replayed(
    requests: tuple[ServerRequest, ...], longest: int, new_tokens: int | None, picks: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per step of chains of 0 to K on the recorded texts, float64 [K + 1], and resampled, [r, K + 1]."""
    texts = [_guesses(request, new_tokens) for request in requests]
    answered = [index for index, text in enumerate(texts) if len(text)]
    if not answered:
        raise ValueError("found no tokens after each request's first, expected answers of two tokens or more")
    rows = [texts[index] for index in answered]
    counts = np.array([len(row) for row in rows])
    vector = AcceptanceVector(
        np.array([np.concatenate(rows).mean()]), prompt_sums=np.array([[row.sum()] for row in rows]),
        prompt_trials=counts, prompt_ranks=tuple(rows),
    )  # fmt: skip
    chain = np.arange(-1, longest)
    replays = replay_while_growing(chain, np.minimum(chain + 2, 1), range(1, longest + 2), vector)
    assert replays is not None  # the vector has ranks
    steps = np.array([each.steps for each in replays])  # [K + 1, m]
    tokens = counts.sum() / steps.sum(axis=1)
    if picks is None:
        return tokens, tokens[None, :]
    picks = picks[:, answered]
    return tokens, np.maximum(picks @ counts, 1)[:, None] / np.maximum(picks @ steps.T, 1)


def _guesses(request: ServerRequest, new_tokens: int | None) -> np.ndarray:
    """Return for each token of an answer after its first whether the draft's guess is right, 1 or 0."""
    accepted, drafted = np.array(request.accepted, dtype=np.int64), np.array(request.drafted, dtype=np.int64)
    ends = np.cumsum(accepted + 1) - 1
    right = np.ones(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.int64)
    right[ends[accepted < drafted]] = 0
    length = request.tokens if request.tokens is not None else None if new_tokens is None else new_tokens - 1
    return right[:length]
