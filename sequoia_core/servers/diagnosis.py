"""One verdict on a server's speculative decoding, and what mending it would bring."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..design.bootstrap import Estimate
from . import rules
from .chain_acceptance import chain_acceptance
from .costs import ServerCosts
from .counts import ServerCounts, counts_of_survival
from .plan import plan_server


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """All findings, the verdict first.

    Args:
        tokens_per_step: now; None where the counts do not tell.
        mended_tokens, mended_speed: supposed; the latter over no speculation, where costs are known.
    """

    findings: tuple[rules.Finding, ...]
    tokens_per_step: float | None
    mended_tokens: float | None = None
    mended_speed: float | None = None

    @property
    def verdict(self) -> rules.Finding:
        return self.findings[0]

    @property
    def gain(self) -> str:
        """What mending would bring, one sentence; empty where that is unknown."""
        if self.mended_tokens is None:
            return ""
        now = "" if self.tokens_per_step is None else f" instead of {self.tokens_per_step:.2f}"
        speed = "" if self.mended_speed is None else f", {self.mended_speed:.2f}× the speed without speculation"
        return f"If mended (supposed: {self.verdict.supposed}): {self.mended_tokens:.2f} tokens per step{now}{speed}."

    def to_json(self) -> dict[str, Any]:
        """Return the verdict with its evidence, and the other findings under `also`."""
        findings = [
            {name: getattr(each, name) for name in ("verdict", "position", "says", "check")}
            | {"evidence": [_plain(evidence) for evidence in each.evidence]}
            for each in self.findings
        ]
        supposed = None if self.mended_tokens is None else self.verdict.supposed
        mended = {"supposed": supposed, "tokens_per_step": self.mended_tokens, "speedup": self.mended_speed}
        return findings[0] | {"tokens_per_step": self.tokens_per_step, "mended": mended, "also": findings[1:]}


def diagnose(
    counts: ServerCounts,
    earlier: ServerCounts | None = None,
    *,
    timed: Sequence[tuple[int, float, int]] = (),
    costs: ServerCosts | None = None,
) -> Diagnosis:
    """Return what is wrong with a server by its counts.

    Args:
        earlier: another period, or published rates of the same draft.
        timed: its own speed: k, tokens per second of all requests together, batch size.
    """
    speed = present_speed(counts, timed, costs)
    if (nothing := rules.never_drafted(counts)) is not None:
        findings = [nothing]
    else:
        shape = rules.wired_wrong(counts) or rules.runs_out(counts) or rules.too_long(counts)
        every = (
            rules.degenerate(counts), rules.falls_with_length(counts), rules.worse(counts, earlier), shape,
            rules.too_slow(counts, speed), rules.drafts_rarely(counts), rules.limited(counts),
        )  # fmt: skip
        findings = [finding for finding in every if finding is not None] or [rules.sound(counts)]
    now, mended = counts.tokens_per_step, findings[0].mended
    if not mended:
        return Diagnosis(tuple(findings), now)
    tokens, faster = 1 + sum(mended), None
    if costs is not None and max(mended) <= 1:
        plan = plan_server(chain_acceptance(counts_of_survival(mended, "supposed")), costs).batches[0]
        faster = plan.speedup[plan.best].value
    elif speed is not None and now:
        faster = speed.value * tokens / now
    return Diagnosis(tuple(findings), now, tokens, faster)


def present_speed(
    counts: ServerCounts, timed: Sequence[tuple[int, float, int]], costs: ServerCosts | None
) -> Estimate | None:
    """Return the present speed over no speculation: measured at one batch size, else planned by costs."""
    longest = len(counts.positions) or max((k for k, _, _ in timed), default=0)
    for batch in sorted({batch for _, _, batch in timed}):
        rates = {k: rate for k, rate, at in timed if at == batch}
        if longest and {0, longest} <= set(rates):
            return Estimate(rates[longest] / rates[0], None, None)
    if costs is None or not counts.positions or not counts.drafts or counts.censored:
        return None
    chains = chain_acceptance(counts)
    speeds = plan_server(chains, costs).batches[0].speedup
    if longest >= len(speeds) or speeds[longest].high is None:
        return speeds[longest] if longest < len(speeds) else None
    value, low, high = speeds[longest]
    most = 1 + chains.drafted_share * rules.most_accepted(counts)  # few drafts resampled vary too little
    return Estimate(value, low, max(high or 0.0, value * most / chains.tokens(longest).value))


def _plain(evidence: rules.Evidence) -> dict[str, Any]:
    """Return a number as JSON has it, which knows no NaN."""
    return {name: None if value != value else value for name, value in evidence._asdict().items()}
