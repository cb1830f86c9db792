"""What a server counted of its speculative decoding, positions from 1, and the rules that such counts obey."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from ..files.gguf_header import LLAMA_CPP

VLLM, SGLANG = "vllm", "sglang"
ENGINES = (VLLM, LLAMA_CPP, SGLANG)
MAX_COUNT = 2**53  # beyond, a float64 no longer counts by ones
MAX_POSITIONS = 1024
UNCENSORED = 0.95  # of K tokens in each draft: below, positions that were never drafted count as refused
RATES = ("survival", "conditional")  # what rates by position may be: of all drafts, or given the position before
SHARES = 10_000  # drafts that published rates are counted as
_ADDED = (
    "drafts", "draft_tokens", "accepted_tokens", "tokens", "requests_done", "steps", "draft_sec", "run_sec",
)  # fmt: skip


class ServerRequest(NamedTuple):
    """The verification steps of one request.

    Attributes:
        accepted, drafted: tokens of each step.
        tokens: that were generated after the first; None where it is not recorded.
    """

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    tokens: int | None = None


class RequestTotals(NamedTuple):
    """The totals of a request, where its steps may be unknown.

    Attributes:
        steps: of verification; accepted: tokens in all of them.
        prompt_tokens: None where it is not known.
        looped: whether the answer ends in text that repeats itself; None where there is no text.
    """

    steps: int
    accepted: int
    prompt_tokens: int | None = None
    looped: bool | None = None


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counts of one engine and one model, between two readings or since its start.

    Args:
        engine: one of `ENGINES`, or what the metrics' own prefix says.
        source: what was read, in words, such as "counters".
        drafts: how many drafts were verified; None where only averages are known.
        draft_tokens, accepted_tokens: of all drafts.
        positions: drafts in which positions 1, 2, ... were accepted; empty where the source does not tell.
        tokens: generated in all, drafts or not; requests_done: requests that they belong to. None where unknown.
        requests: where the source tells of each request; then all counts are theirs.
        totals: of each request, where the source tells of each.
        ordered: whether the steps of `requests` are in their order, so that they can be replayed.
        mean_length: tokens per step, where the source only tells averages.
        shares: whether counts are published rates, as if of 10,000 drafts; nothing then has an interval.
        model: name as the server gives it.
        notes: what was assumed, and what the source cannot tell; for people.
    """

    engine: str
    source: str
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    positions: tuple[int, ...] = ()
    tokens: int | None = None
    requests_done: int | None = None
    requests: tuple[ServerRequest, ...] = ()
    ordered: bool = False
    mean_length: float | None = None
    shares: bool = False
    model: str = ""
    notes: tuple[str, ...] = ()
    totals: tuple[RequestTotals, ...] = ()
    drafter: str = ""
    steps: int | None = None
    draft_sec: float | None = None
    run_sec: float | None = None
    periods: "tuple[ServerCounts, ...]" = ()

    def __post_init__(self) -> None:
        if len(self.positions) > MAX_POSITIONS:
            raise ValueError(f"found {len(self.positions):,} positions, expected at most {MAX_POSITIONS:,}")
        above = self.drafts
        for position, count in enumerate(self.positions, start=1):
            if above is not None and count > above:
                what = "drafts" if position == 1 else f"accepted at position {position - 1}"
                raise ValueError(
                    f"found {count:,} accepted at position {position} of {above:,} {what}, expected no more"
                )
            above = count
        if self.positions and self.accepted_tokens not in (None, sum(self.positions)):
            raise ValueError(
                f"found {self.accepted_tokens:,} accepted tokens, expected {sum(self.positions):,}: what the positions "
                "add up to"
            )
        if None not in (self.accepted_tokens, self.draft_tokens) and self.accepted_tokens > self.draft_tokens:  # type: ignore[operator]
            raise ValueError(f"found {self.accepted_tokens:,} accepted of {self.draft_tokens:,} draft tokens")

    @property
    def filled(self) -> float | None:
        """Draft tokens ÷ (K · drafts): how full drafts are; None where a count is missing."""
        if not self.positions or not self.drafts or self.draft_tokens is None:
            return None
        return self.draft_tokens / (len(self.positions) * self.drafts)

    @property
    def censored(self) -> bool:
        """Whether many drafts ended early, so that positions never drafted count as refused."""
        return self.filled is not None and self.filled < UNCENSORED

    @property
    def coverage(self) -> float | None:
        """Share of steps that had a draft; None where tokens were not counted.

        A step yields one token beside the accepted ones. For llama.cpp it is a little too low: how many first tokens
        come from no step is unknown.
        """
        if self.tokens is None or self.accepted_tokens is None or not self.drafts:
            return None
        steps = self.tokens - (self.requests_done or 0) - self.accepted_tokens
        return min(1.0, self.drafts / steps) if steps > 0 else 1.0

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per step; None where the counts do not tell."""
        if self.drafts and self.accepted_tokens is not None:
            return 1 + (self.coverage or 1.0) * self.accepted_tokens / self.drafts
        return 1.0 if self.drafts == 0 else self.mean_length


def summed(parts: Sequence[ServerCounts], source: str) -> ServerCounts:
    """Add up counts; what one part lacks is unknown of all, and averages are averaged."""
    totals: dict[str, Any] = {}
    for name in _ADDED:
        values = [getattr(part, name) for part in parts]
        totals[name] = None if None in values else sum(values)
    means = [part.mean_length for part in parts]
    return replace(
        parts[-1], **totals, source=source, notes=(), periods=(),
        mean_length=None if None in means else sum(means) / len(means),  # type: ignore[arg-type]
        positions=tuple(map(sum, zip_longest(*(part.positions for part in parts), fillvalue=0))),
        requests=tuple(chain.from_iterable(part.requests for part in parts)),
        totals=tuple(chain.from_iterable(part.totals for part in parts)),
    )  # fmt: skip


def counts_of_survival(
    survival: Sequence[float], source: str, *, engine: str = "unknown", notes: tuple[str, ...] = ()
) -> ServerCounts:
    """Return published rates as counts of `SHARES` drafts; nothing has an interval."""
    positions = tuple(round(SHARES * share) for share in survival)
    return ServerCounts(engine, source, SHARES, None, sum(positions), positions, shares=True, notes=notes)
