"""Diagnose a server's speculative decoding, and estimate what a fix would gain."""

from dataclasses import dataclass
from typing import Any

from sequoia_core.acceptance.vector import AcceptanceVector

from . import rules
from .chain_acceptance import counts_from_vector
from .counts import ServerCounts
from .evidence import Facts
from .request_spread import find_collapse
from .speeds import Speeds

UNKNOWN_SPEEDS = Speeds()


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """The findings about a server; the first one is the verdict.

    Args:
        tokens_per_step: current value; None if unknown.
        speeds: speed relative to no speculation.
        notes: assumptions about the times, and remarks on the steps.
    """

    findings: tuple[rules.Finding, ...]
    tokens_per_step: float | None
    speeds: Speeds = UNKNOWN_SPEEDS
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> rules.Finding:
        return self.findings[0]

    @property
    def tokens_if_fixed(self) -> float | None:
        """Estimated tokens per step once the first finding is fixed; None if unknown."""
        return 1 + sum(self.verdict.survival_if_fixed) if self.verdict.survival_if_fixed else None

    @property
    def speed_if_fixed(self) -> float | None:
        """Estimated speed relative to no speculation once that finding is fixed; None if unknown."""
        survival = self.verdict.survival_if_fixed
        return self.speeds.with_survival(survival, self.tokens_per_step) if survival else None

    @property
    def gain(self) -> str:
        """A sentence on what fixing the first finding would gain; empty if unknown."""
        if self.tokens_if_fixed is None:
            return ""
        now = "" if self.tokens_per_step is None else f" instead of {self.tokens_per_step:.1f}"
        speed = "" if self.speed_if_fixed is None else f", {self.speed_if_fixed:.1f}× the speed without speculation"
        fixed = f"about {self.tokens_if_fixed:.1f} tokens per step{now}{speed}"
        return f"If fixed (assuming {self.verdict.supposed}): {fixed}."

    def to_json(self) -> dict[str, Any]:
        """Return the verdict with its evidence, and the other findings under `also`."""
        findings = [
            {name: getattr(finding, name) for name in ("verdict", "position", "says", "check")}
            | {"evidence": [_evidence_json(evidence) for evidence in finding.evidence]}
            for finding in self.findings
        ]
        supposed = None if self.tokens_if_fixed is None else self.verdict.supposed
        fixed = {"supposed": supposed, "tokens_per_step": self.tokens_if_fixed, "speedup": self.speed_if_fixed}
        return findings[0] | {"tokens_per_step": self.tokens_per_step, "mended": fixed, "also": findings[1:]}


def diagnose(counts: ServerCounts, earlier: ServerCounts | None = None, speeds: Speeds = UNKNOWN_SPEEDS) -> Diagnosis:
    """Diagnose a server from its counts.

    Args:
        earlier: counts from another period, or published rates for the same draft; None if there are none.
        speeds: speed relative to no speculation; see `find_speeds`.
    """
    facts = Facts(counts, earlier)
    fallen = None
    if (nothing := rules.never_drafted(facts)) is not None:
        return Diagnosis((nothing,), counts.tokens_per_step)
    if (collapse := find_collapse(counts)) is not None:  # no single verdict fits the whole source
        facts = Facts(collapse.rest, earlier)
        fallen = Facts(collapse.low)
    every = (
        rules.collapses(facts, fallen),
        rules.degenerate(facts),
        rules.falls_with_length(facts),
        rules.worse(facts),
        rules.wired_wrong(facts) or rules.runs_out(facts) or rules.too_long(facts),
        rules.too_slow(facts, speeds.present),
        rules.drafts_rarely(facts),
        rules.limited(facts),
    )
    findings = [finding for finding in every if finding is not None] or [rules.no_fault(facts)]
    notes = tuple(filter(None, [*step_notes(facts.counts), speeds.doubt]))
    return Diagnosis(tuple(findings), facts.tokens_per_step, speeds, notes)


def step_notes(counts: ServerCounts) -> list[str]:
    """Return notes on the share of steps with a draft and the share of time spent drafting, if counted."""
    notes = []
    if counts.steps and counts.coverage is not None:
        notes.append(f"{counts.coverage:.0%} of the {counts.steps:,} steps have a draft.")
    if counts.draft_sec is not None and counts.run_sec:
        share = counts.draft_sec / counts.run_sec
        notes.append(f"Drafting takes {counts.draft_sec:.1f} of {counts.run_sec:.1f} s, {share:.0%} of the time.")
    return notes


def _evidence_json(evidence: rules.Evidence) -> dict[str, Any]:
    # JSON has no NaN, which is the only value that differs from itself.
    return {name: None if value != value else value for name, value in evidence._asdict().items()}


def wired_wrong_by_vector(vector: AcceptanceVector) -> rules.Finding | None:
    """Return the finding that a head is wired wrong if a measured vector suggests it; otherwise None."""
    return rules.wired_wrong(Facts(counts_from_vector(vector, "")))
