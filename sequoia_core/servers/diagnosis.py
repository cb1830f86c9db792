"""One verdict on a server's speculative decoding, and what fixing it would gain."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..design.bootstrap import Estimate
from . import rules
from .chain_acceptance import chain_acceptance, tokens_per_step
from .costs import ServerCosts
from .counts import ServerCounts, counts_of_survival
from .evidence import drafts_or_steps, most_accepted
from .plan import plan_server
from .request_spread import collapse


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """All findings, the verdict first.

    Args:
        tokens_per_step: now; None where the counts do not tell.
        mended_tokens, mended_speed: supposed; the latter over no speculation, where costs are known.
        notes: what was assumed of the times, and what the counts say of steps; for people.
    """

    findings: tuple[rules.Finding, ...]
    tokens_per_step: float | None
    mended_tokens: float | None = None
    mended_speed: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> rules.Finding:
        return self.findings[0]

    @property
    def gain(self) -> str:
        """What fixing it would gain, one sentence; empty where that is unknown."""
        if self.mended_tokens is None:
            return ""
        now = "" if self.tokens_per_step is None else f" instead of {self.tokens_per_step:.1f}"
        speed = "" if self.mended_speed is None else f", {self.mended_speed:.1f}× the speed without speculation"
        return (
            f"If fixed (supposed: {self.verdict.supposed}): about {self.mended_tokens:.1f} tokens per step{now}{speed}."
        )

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
    if (nothing := rules.never_drafted(counts)) is not None:
        return Diagnosis((nothing,), counts.tokens_per_step)
    fall = collapse(counts)
    if fall is not None:  # the whole is neither one thing nor the other
        counts = fall.rest
    now = tokens_per_step(counts)
    speed, doubt = present_speed(counts, timed, costs)
    shape = rules.wired_wrong(counts) or rules.runs_out(counts) or rules.too_long(counts)
    every = (
        rules.collapses(fall), rules.degenerate(counts), rules.falls_with_length(counts), rules.worse(counts, earlier),
        shape, rules.too_slow(now, speed), rules.drafts_rarely(counts), rules.limited(counts),
    )  # fmt: skip
    findings = [finding for finding in every if finding is not None] or [rules.sound(counts)]
    notes = tuple(filter(None, [*step_facts(counts), doubt]))
    mended = findings[0].mended
    if not mended:
        return Diagnosis(tuple(findings), now, notes=notes)
    tokens, faster = 1 + sum(mended), None
    if costs is not None and max(mended) <= 1:
        plan = plan_server(chain_acceptance(counts_of_survival(mended, "supposed")), costs).batches[0]
        faster = plan.speedup[plan.best].value
    elif speed is not None and now and counts.positions:  # else the speed may be of another K
        faster = speed.value * tokens / now
    return Diagnosis(tuple(findings), now, tokens, faster, notes)


def present_speed(
    counts: ServerCounts, timed: Sequence[tuple[int, float, int]], costs: ServerCosts | None
) -> tuple[Estimate | None, str]:
    """Return the present speed over no speculation, and what is doubtful about it.

    It is measured at one batch size, else planned by costs.
    """
    longest, doubt = len(counts.positions), ""
    if not longest:
        longest = max((k for k, _, _ in timed), default=0)
        per_step = (counts.draft_tokens or 0) / (drafts_or_steps(counts) or 1)
        doubt = f"The counts do not say which K ran: K = {longest}, the longest that was timed, is assumed."
        if per_step > longest > 0:
            return None, (
                f"{per_step:.2f} tokens are drafted per step, more than K = {longest}, the longest that was timed: "
                "these speeds belong to other counts and are ignored."
            )
    for batch in sorted({batch for _, _, batch in timed}):
        rates = {k: rate for k, rate, at in timed if at == batch}
        if longest and {0, longest} <= set(rates):
            return Estimate(rates[longest] / rates[0], None, None), doubt
    if costs is None or not counts.positions or not counts.drafts or counts.censored:
        return None, ""
    chains = chain_acceptance(counts)
    speeds = plan_server(chains, costs).batches[0].speedup
    if longest >= len(speeds) or speeds[longest].high is None:
        return (speeds[longest] if longest < len(speeds) else None), ""
    value, low, high = speeds[longest]
    most = 1 + chains.drafted_share * most_accepted(counts)  # few drafts resampled vary too little
    return Estimate(value, low, max(high or 0.0, value * most / chains.tokens(longest).value)), ""


def step_facts(counts: ServerCounts) -> list[str]:
    """Say what share of the steps has a draft, and of the time is drafting, where the source counts them."""
    facts = []
    if counts.steps and counts.coverage is not None:
        facts.append(f"{counts.coverage:.0%} of the {counts.steps:,} steps have a draft.")
    if counts.draft_sec is not None and counts.run_sec:
        share = counts.draft_sec / counts.run_sec
        facts.append(f"Drafting takes {counts.draft_sec:.1f} of {counts.run_sec:.1f} s, {share:.0%} of the time.")
    return facts


def _plain(evidence: rules.Evidence) -> dict[str, Any]:
    """Return a number as JSON has it, which knows no NaN."""
    return {name: None if value != value else value for name, value in evidence._asdict().items()}
