"""The record of one decode: what was asked, every step, the baseline, and what the figures say.

A run is one plain dict (`format: sequoia-run`): header, step records, baseline. It is what the live tree shows, what a
session keeps and what a recorded run on disk holds. No Streamlit here. n = tree nodes including the root.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sequoia_core.design.tree import TokenTree
from ui.jobs import PairSpec

if TYPE_CHECKING:
    from sequoia_core import DecodeStep

FORMAT, VERSION = "sequoia-run", 1
OUTCOME_CODES = {"accepted": "A", "rejected": "R", "not reached": "N"}
TEXT_WINDOW = 6  # tokens of context that settle what text the next token adds
HELD_WITHIN = 0.1  # relative difference up to which a prediction counts as right

# ---- the record of a run


class TokenText:
    """Tells the text each token adds after those before it.

    A token may be part of a character, or lose its leading space when decoded alone; hence the context.

    Args:
        decode: token ids -> text.
        context: the prompt's ids, at least one.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int]) -> None:
        self._decode = decode
        self._before = list(context[-TEXT_WINDOW:])
        self._anchor = list(context[-1:])
        self._labels: dict[int, str] = {}

    def label(self, token: int) -> str:
        """Return a token's text on its own."""
        if token not in self._labels:
            whole, lead = self._decode([*self._anchor, token]), self._decode(self._anchor)
            self._labels[token] = whole[len(lead) :] if whole.startswith(lead) else self._decode([token])
        return self._labels[token]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what each of the next committed tokens adds; "" while a character is incomplete."""
        pieces = []
        for token in tokens:
            before = self._decode(self._before).rstrip("\ufffd")
            self._before = [*self._before, int(token)]
            after = self._decode(self._before)
            complete = after.startswith(before) and not after.endswith("\ufffd")
            pieces.append(after[len(before) :] if complete else "")
            self._before = self._before[-TEXT_WINDOW:]
        return pieces


def step_record(step: DecodeStep, text: TokenText) -> dict[str, Any]:
    """Turn a step into what the live tree and a file hold.

    Returns:
        `tokens` [n] texts, `outcomes` n letters of A, R, N, `draft` and `target` [n] probabilities, `path` node ids,
        `bonus` text or None when the run ended before it, `pieces` the text of each committed token, `trials` rows of
        [node, r, R[s], D[s]], `seconds` [draft, verify, walk, commit].
    """
    has_bonus = len(step.new_tokens) == len(step.accepted_path)
    return {
        "index": step.index,
        "tokens": [text.label(token) for token in step.tokens],
        "outcomes": "".join(OUTCOME_CODES[outcome] for outcome in step.outcomes),
        "draft": [_finite(value) for value in step.draft_probs],
        "target": [_finite(value) for value in step.target_probs],
        "path": [int(node) for node in step.accepted_path],
        "bonus": text.label(step.bonus_token) if has_bonus else None,
        "pieces": text.pieces(step.new_tokens),
        "trials": [[int(t.node), *map(_finite, (t.uniform, t.target_mass, t.draft_mass))] for t in step.trials],
        "seconds": [step.draft_sec, step.verify_sec, step.walk_sec, step.commit_sec],
        "finished": step.finished,
    }


def _finite(value: float) -> float | None:
    """Return a plain number short enough to send often; None for NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One decode as asked for, and what was predicted for it.

    Attributes:
        models: the pair, and its dtype.
        expected_tokens: F of the tree; predicted_speedup: against autoregressive. None where nothing that was measured
            holds for this pair, these settings and this machine.
    """

    prompt: str
    tree: TokenTree
    tree_source: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 128
    verifier: str = "sequoia"
    seed: int = 0
    models: PairSpec = PairSpec()
    expected_tokens: float | None = None
    predicted_speedup: float | None = None

    def header(self) -> dict[str, Any]:
        """Return what a run holds besides its steps and its baseline."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "id": uuid.uuid4().hex[:12],
            "prompt": self.prompt,
            "parents": self.tree.parents.tolist(),
            "tree_source": self.tree_source,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "max_new_tokens": self.max_new_tokens,
            "verifier": self.verifier,
            "seed": self.seed,
            "target": self.models.target,
            "draft": self.models.draft,
            "dtype": self.models.dtype,
            "device": None,
            "expected_tokens": self.expected_tokens,
            "predicted_speedup": self.predicted_speedup,
            "steps": [],
            "baseline": None,
            "text": "",
        }


def tree_of(run: dict[str, Any]) -> TokenTree:
    """Return the tree that every step of a run fills."""
    return TokenTree(np.array(run["parents"], dtype=np.int32))


def load_run(path: str | Path) -> dict[str, Any]:
    """Read a recorded run.

    Raises:
        ValueError: when the file does not hold one.
    """
    run = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(run, dict) or run.get("format") != FORMAT or run.get("version") != VERSION:
        raise ValueError(f"{path}: found no recorded run, expected format {FORMAT!r} version {VERSION}")
    tree_of(run)
    return run


def run_to_bytes(run: dict[str, Any]) -> bytes:
    """Return the file content that `load_run` reads back."""
    return json.dumps(run, allow_nan=False).encode()


# ---- what a run says


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of a run; None where it did not get that far.

    Attributes:
        tokens, steps: committed tokens and target passes.
        tokens_per_step: their ratio; expected_tokens is its predicted counterpart F.
        tokens_per_sec, baseline_per_sec: with the tree and without it, prompt reading excluded on both sides; by the
            median step, since a browser that asks for news makes single steps wait.
        drafted_share: committed tokens that the draft proposed, over all committed tokens.
        speedup: tokens_per_sec / baseline_per_sec; predicted_speedup is what the planner said.
        step_cost: seconds of a step over seconds of an autoregressive token; predicted_cost its counterpart t(n) + d·c.
        phase_share: draft, verify, walk and commit, by the median step.
    """

    tokens: int
    steps: int
    tokens_per_step: float | None
    tokens_per_sec: float | None
    drafted_share: float | None
    baseline_per_sec: float | None
    speedup: float | None
    expected_tokens: float | None
    predicted_speedup: float | None
    step_cost: float | None
    predicted_cost: float | None
    phase_share: tuple[float, float, float, float] | None


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


def summarize(
    steps: Sequence[dict[str, Any]],
    *,
    baseline: dict[str, Any] | None = None,
    expected_tokens: float | None = None,
    predicted_speedup: float | None = None,
) -> RunSummary:
    """Compute the figures of a run from its step records, so far as there are any."""
    tokens = sum(len(step["pieces"]) for step in steps)
    bonus = sum(step["bonus"] is not None for step in steps)
    phases = np.median([step["seconds"] for step in steps], axis=0).tolist() if steps else []
    step_sec = float(np.median([sum(step["seconds"]) for step in steps])) if steps else None
    per_sec = _ratio(_ratio(tokens, len(steps)), step_sec)
    baseline_per_sec = None
    if baseline:
        baseline_per_sec = _ratio(1.0, baseline.get("median_sec")) or _ratio(baseline["tokens"], baseline["seconds"])
    return RunSummary(
        tokens=tokens,
        steps=len(steps),
        tokens_per_step=_ratio(tokens, len(steps)),
        tokens_per_sec=per_sec,
        drafted_share=_ratio(tokens - bonus, tokens),
        baseline_per_sec=baseline_per_sec,
        speedup=_ratio(per_sec, baseline_per_sec),
        expected_tokens=expected_tokens,
        predicted_speedup=predicted_speedup,
        step_cost=None if step_sec is None or baseline_per_sec is None else step_sec * baseline_per_sec,
        predicted_cost=_ratio(expected_tokens, predicted_speedup),
        phase_share=tuple(phase / sum(phases) for phase in phases) if sum(phases) else None,
    )


def explain(summary: RunSummary) -> str:
    """Say in one sentence why the measured speedup is what it is."""
    measured, predicted = summary.speedup, summary.predicted_speedup
    if summary.tokens_per_step is None:
        return "No step was decoded."
    if measured is None:
        return "The autoregressive run that the speed is compared with has not been measured."
    if predicted is None or summary.expected_tokens is None or summary.predicted_cost is None:
        expected = summary.expected_tokens
        yields = "" if expected is None else f" ({expected:.2f} were expected)"
        return (
            f"One step costs {summary.step_cost:.2f} autoregressive tokens and yields {summary.tokens_per_step:.2f}"
            f"{yields}, hence {measured:.2f}×; no speed was predicted for this pair, these settings and this machine."
        )
    tokens = _change(summary.tokens_per_step / summary.expected_tokens, "as many", "more", "fewer")
    cost = _change(summary.step_cost / summary.predicted_cost, "as much", "more", "less")
    if abs(measured / predicted - 1) <= HELD_WITHIN:
        held = "The prediction held"
    else:
        held = "The run beat the prediction" if measured > predicted else "The run fell short of the prediction"
    slowest = ("drafting", "verifying", "walking", "committing")[int(np.argmax(summary.phase_share))]
    verdict = " Speculation is slower than plain decoding here." if measured < 1 else ""
    return (
        f"{held}: a step yielded {tokens.format('tokens')} expected ({summary.tokens_per_step:.2f} against "
        f"{summary.expected_tokens:.2f}) and took {cost.format('time')} predicted ({summary.step_cost:.2f} against "
        f"{summary.predicted_cost:.2f} autoregressive tokens, mostly {slowest}).{verdict}"
    )


def _change(ratio: float, same: str, up: str, down: str) -> str:
    """Return a phrase with a place for the noun, such as "12% more {} than"."""
    if abs(ratio - 1) < 0.02:
        return f"{same} {{}} as"
    return f"{abs(ratio - 1):.0%} {up if ratio > 1 else down} {{}} than"
