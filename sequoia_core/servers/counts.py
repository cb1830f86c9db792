"""What a server counted of its speculative decoding, positions from 1, and the rules that such counts obey."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from math import ceil
from typing import Any, NamedTuple

from ..files.gguf_header import LLAMA_CPP

VLLM, SGLANG = "vllm", "sglang"
ENGINES = (VLLM, LLAMA_CPP, SGLANG)
MAX_COUNT = 2**53  # beyond, a float64 no longer counts by ones
MAX_POSITIONS = 1024
MAX_PERIODS = 10_000  # of a source; more parts are added up
UNCENSORED = 0.95  # of K tokens in each draft: below, positions that were never drafted count as refused
RATES = ("survival", "conditional")  # what rates by position may be: of all drafts, or given the position before
SHARES = 10_000  # drafts that published rates are counted as
MAX_LINE = 16_384  # characters of a line that counts
SHOWN_LINES = 3  # lines left out that a note quotes
_ADDED = (
    "drafts", "draft_tokens", "accepted_tokens", "tokens", "requests_done", "steps", "draft_sec", "run_sec",
)  # fmt: skip


class Unrecognised(ValueError):
    """Nothing in a source counts speculative decoding."""


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
        drafter: name that the source gives the drafter.
        steps: verification steps, with or without a draft, where the source counts them.
        draft_sec, run_sec: time spent drafting and in all, where the source tells.
        periods: where the source has several parts (stretches, requests or engines), the counts of each, in order;
            `source` says which part it is. The counts here are those of one K.
        ordered: whether the steps of `requests` are in their order, so that they can be replayed.
        mean_length: tokens per step, where the source tells no more than averages or totals.
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
                raise ValueError(
                    f"found {count:,} accepted at position {position}, expected at most the {above:,} before it"
                )
            above = count
        if self.positions and self.accepted_tokens not in (None, sum(self.positions)):
            raise ValueError(
                f"found {self.accepted_tokens:,} accepted tokens, expected {sum(self.positions):,}: what the positions "
                "add up to"
            )
        self._check_draft_tokens()
        if self.tokens is not None and self.tokens < self.fewest_tokens:
            of = f"{self.drafts or 0:,} drafts with {self.accepted_tokens or 0:,} tokens accepted"
            raise ValueError(f"found {self.tokens:,} tokens generated by {of}, expected {self.fewest_tokens:,} or more")
        if self.steps is not None and self.steps < (self.drafts or 0):
            raise ValueError(f"found {self.drafts:,} drafts in {self.steps:,} steps, expected no more than one each")

    def _check_draft_tokens(self) -> None:
        drafts, drafted = self.drafts, self.draft_tokens
        if drafted is None:
            return
        if (self.accepted_tokens or 0) > drafted:
            raise ValueError(f"found {self.accepted_tokens:,} accepted of {drafted:,} draft tokens, expected no more")
        # fewer than drafts are no error: vLLM takes off the drafts that a grammar rules out
        most = (len(self.positions) or drafted) * (drafts or 0)
        if drafts is not None and drafted > most:
            of = f" of K = {len(self.positions)}" if self.positions else ""
            raise ValueError(f"found {drafted:,} draft tokens in {drafts:,} drafts{of}, expected at most {most:,}")

    @property
    def fewest_tokens(self) -> int:
        """Fewest tokens that these drafts can have generated.

        Each draft yields a token beside the accepted ones. The end of a request cuts off up to K of them; where the
        number of requests is unknown, up to 5 % are taken as cut off.
        """
        drafts = self.drafts or 0
        whole = drafts + (self.accepted_tokens or 0)
        if self.requests_done is None:
            return max(drafts, int(UNCENSORED * whole))
        return max(drafts, whole - self.requests_done * (len(self.positions) or self.draft_tokens or 0))

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
    def all_steps(self) -> int | None:
        """Steps, with or without a draft; None where they are neither counted nor follow from the tokens.

        A step yields one token beside the accepted ones. For llama.cpp's metrics there are a few too many: how many
        first tokens come from no step is unknown.
        """
        if self.steps is not None or self.tokens is None:
            return self.steps
        steps = self.tokens - (self.requests_done or 0) - (self.accepted_tokens or 0)
        return max(steps, self.drafts or 0)  # fewer than drafts only by what the ends of requests cut off

    @property
    def coverage(self) -> float | None:
        """Share of steps that had a draft; None where drafts or steps are unknown."""
        return self.drafts / self.all_steps if self.drafts and self.all_steps else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per step; None where the counts do not tell."""
        if self.drafts == 0:
            return 1.0
        steps = self.all_steps or self.drafts
        return 1 + self.accepted_tokens / steps if steps and self.accepted_tokens is not None else self.mean_length


def summed(parts: Sequence[ServerCounts], source: str = "") -> ServerCounts:
    """Add up counts; a field that any part lacks is None, and averages are averaged.

    Without a `source` it follows from those of the parts, in their order: line 1 and lines 2 to 4 are lines 1 to 4.
    """
    totals: dict[str, Any] = {}
    for name in _ADDED:
        values = [getattr(part, name) for part in parts]
        totals[name] = None if None in values else sum(values)
    means = [part.mean_length for part in parts]
    first, last = parts[0].source, parts[-1].source
    if not source and first != last:
        kind = re.fullmatch(r"(\w+?)s? (\d+)(?: to \d+)?", first)
        end = re.fullmatch(r"\w+ (?:\d+ to )?(\d+)", last)
        source = f"{kind[1]}s {kind[2]} to {end[1]}" if kind and end else f"{first} to {last}"
    tokens = totals.pop("tokens")
    whole = replace(
        parts[-1], **totals, tokens=None, source=source or first, notes=(), periods=(),
        mean_length=None if None in means else sum(means) / len(means),  # type: ignore[arg-type]
        positions=tuple(map(sum, zip_longest(*(part.positions for part in parts), fillvalue=0))),
        requests=tuple(chain.from_iterable(part.requests for part in parts)),
        totals=tuple(chain.from_iterable(part.totals for part in parts)),
    )  # fmt: skip
    # each part may just pass the check that their sum, which is rounded otherwise, does not
    return whole if tokens is None or tokens < whole.fewest_tokens else replace(whole, tokens=tokens)


def counts_of_one_k(parts: Sequence[ServerCounts], source: str, notes: Iterable[str] = ()) -> ServerCounts:
    """Add up the parts of the K with the most draft tokens.

    `periods` has all parts in their order, where there are several; of very many, neighbours of one K are added up.
    """
    drafted = [part for part in parts if part.drafts != 0]
    if not drafted:
        return replace(summed(parts, source), notes=tuple(notes))
    lengths = dict.fromkeys(len(part.positions) for part in drafted)
    by_k = {k: [part for part in drafted if len(part.positions) == k] for k in lengths}
    sums = [summed(group, f"K = {k}" if k else "drafts without counts by position") for k, group in by_k.items()]
    most = max(sums, key=lambda each: (each.draft_tokens or 0, len(each.positions) > 0))
    # what was generated without a draft belongs to the steps, whatever the K
    idle = [replace(part, positions=()) for part in parts if part.drafts == 0]
    if len(sums) > 1:
        each = ", ".join(f"{each.source} ({each.draft_tokens or 0:,} draft tokens)" for each in sums)
        notes = (f"Several settings: {each}. The counts are those of {most.source} alone.", *notes)
    whole = summed([*idle, *by_k[len(most.positions)]], source)
    return replace(whole, notes=tuple(notes), periods=_periods(parts) if len(parts) > 1 else ())


def _periods(parts: Sequence[ServerCounts]) -> tuple[ServerCounts, ...]:
    size = ceil(len(parts) / MAX_PERIODS)
    runs = groupby(enumerate(parts), key=lambda each: (each[0] // size, len(each[1].positions)))
    return tuple(summed([part for _, part in run]) for _, run in runs)


def read_each(lines: Iterable[Any], read: Callable[[Any], Any], odd: list[str]) -> list[tuple[int, Any]]:
    """Return number and content of the lines that have any; `odd` says which cannot be read and why."""
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append((number, read(line)))
        except ValueError as error:
            odd.append(f"line {number}: {error}")
    return [(number, content) for number, content in found if content is not None]


def notes_of_left_out(lines: Sequence[str]) -> list[str]:
    """Say which lines were left out and why."""
    notes = [f"Left out: {line}" for line in lines[:SHOWN_LINES]]
    more = len(lines) - SHOWN_LINES
    return [*notes, f"{more:,} more lines were left out for such reasons."] if more > 0 else notes


def counts_of_survival(
    survival: Sequence[float], source: str, *, engine: str = "unknown", notes: tuple[str, ...] = ()
) -> ServerCounts:
    """Return published rates as counts of `SHARES` drafts; nothing has an interval."""
    positions = tuple(round(SHARES * share) for share in survival)
    return ServerCounts(engine, source, SHARES, None, sum(positions), positions, shares=True, notes=notes)
