"""Decode requests, the records of their runs, and descriptions of settings and figures."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequoia_core.acceptance.conditions import FIRST_UNCUT, TOPK
from sequoia_core.files.json_models import validate_model
from sequoia_core.files.model_names import NO_DRAFT
from sequoia_core.measuring.run_summary import Baseline, RunSummary, summarize_run
from sequoia_core.models.chat import Turn
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import RAW_ENDING, Prompting
from sequoia_core.planning.profile import TIER_NAMES
from sequoia_core.trees.tree import TokenTree
from ui.markdown import safe_name
from ui.phrases import ONE_PASS_DIGITS, times
from ui.runs.run_schema import RUN_FORMAT, RUN_VERSION, RunHeader
from ui.token_text import TokenText
from ui.token_tree.steering import Steering
from ui.verifier_names import VERIFIER_NAMES

if TYPE_CHECKING:
    from sequoia_core import DecodeStep
    from sequoia_core.decoding.explaining import Likely
    from sequoia_core.decoding.node_facts import MarginalGains, Occurrence
    from sequoia_core.decoding.tree_policy import TreePolicy
    from sequoia_extras.dynamic_trees.text_index import TextIndex

OUTCOME_CODES = {"accepted": "A", "rejected": "R", "not reached": "N"}
OUTCOME_TITLES = {
    "held": "The prediction held",
    "beaten": "The run beat the prediction",
    "missed": "The run fell short of the prediction",
}
RECORDED_AS_ASKED = (
    "prompt",
    "tree_source",
    "temperature",
    "top_p",
    "max_new_tokens",
    "verifier",
    "seed",
    "expected_tokens",
    "predicted_speedup",
)
PHASE_WORDS = {"draft": "drafting", "verify": "verifying", "walk": "walking", "commit": "committing"}


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """The settings of one decode and its prediction.

    Attributes:
        prompt: the prompt; if there are `turns`, the run records the templated conversation instead.
        turns: a conversation that ends with the user's message; empty for a plain prompt.
        expected_tokens: the tree's F; None unless measurements apply to this pair, these settings and this machine.
        predicted_speedup: speedup over autoregressive decoding; None as for `expected_tokens`.
        predicted_interval: 95% interval of the speedup for one prompt; None if unknown.
        steering: the object through which the page controls the run.
        prompting: the prompt encoding; a conversation always uses the chat template.
        earlier: the index to which the prompt and answer are added when the decode has finished; None for no index.
    """

    prompt: str
    tree: TokenTree | TreePolicy
    tree_source: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 128
    verifier: str = "sequoia"
    seed: int = 0
    models: PairSpec = PairSpec()
    expected_tokens: float | None = None
    predicted_speedup: float | None = None
    predicted_interval: tuple[float, float] | None = None
    steering: Steering = field(default_factory=Steering, compare=False)
    turns: tuple[Turn, ...] = ()
    prompting: Prompting = Prompting()
    earlier: TextIndex | None = field(default=None, compare=False)

    def header(self) -> dict[str, Any]:
        """Return a run without steps; fields that depend on the loaded pair are None."""
        target, draft = self.models.names
        fields = {
            "format": RUN_FORMAT,
            "version": RUN_VERSION,
            "id": uuid.uuid4().hex[:12],
            "turns": [asdict(turn) for turn in self.turns],
            "template_arguments": dict(self.prompting.arguments),
            "first_cut": self.verifier != TOPK if self.temperature and self.top_p < 1 else None,
            "target": target,
            "draft": draft,
            "offload": self.models.offload,
            "predicted_interval": None if self.predicted_interval is None else list(self.predicted_interval),
            "text": "",
            "shapes": [],
        }
        fields |= dict.fromkeys(("dtype", "device", "baseline"))
        header = validate_model(RunHeader, fields | {name: getattr(self, name) for name in RECORDED_AS_ASKED})
        return header.model_dump() | {"steps": []}


class Recorder:
    """Adds steps to a run, and adds each distinct tree once, before the first step that uses it."""

    def __init__(self, run: dict[str, Any], text: TokenText) -> None:
        self._run = run
        self._text = text
        self._shapes: dict[TokenTree, int] = {}

    def add(self, step: DecodeStep) -> dict[str, Any]:
        """Add a step to the run and return its record."""
        shape = self._shapes.setdefault(step.tree, len(self._shapes))
        if shape == len(self._run["shapes"]):  # added first, because pages read the run while it grows
            self._run["shapes"].append(step.tree.parents.tolist())
        record = step_record(step, self._text, shape)
        self._run["steps"].append(record)
        return record


def step_record(step: DecodeStep, text: TokenText, shape: int = 0) -> dict[str, Any]:
    """Return the fields of a `StepRecord`; `shape` is the index of the step's tree."""
    record: dict[str, Any] = {
        "index": step.index,
        "shape": shape,
        "tokens": [text.label(token) for token in step.tokens],
        "outcomes": "".join(OUTCOME_CODES[outcome] for outcome in step.outcomes),
        "draft": [_round(value) for value in step.draft_probs],
        "target": [_round(value) for value in step.target_probs],
        "path": [int(node) for node in step.accepted_path],
        "bonus": None if step.bonus_token is None else text.label(step.bonus_token),
        "pieces": text.pieces(step.new_tokens),
        "trials": [[int(t.node), *map(_round, (t.uniform, t.target_mass, t.draft_mass))] for t in step.trials],
        "seconds": [step.draft_sec, step.verify_sec, step.walk_sec, step.commit_sec],
        "read_wait_sec": step.read_wait_sec,
        "finished": step.finished,
        "rows": [
            {
                "node": rows.node,
                "target": _likely_tokens(rows.target, text),
                "draft": _likely_tokens(rows.draft, text),
                "residuals": [_likely_tokens(residual, text) for residual in rows.residuals],
                "accepted": rows.accepted and {name: _round(share) for name, share in rows.accepted.items()},
            }
            for rows in step.path_rows
        ],
    }
    if step.occurrences:
        record["found_at"] = [match and _lookup_match(match, text) for match in step.occurrences]
    if step.marginal_gains is not None:
        record["marginal"] = _marginal(step.marginal_gains, text)
    return record


def _lookup_match(match: Occurrence, text: TokenText) -> dict[str, Any]:
    before, after = text.passage(match.before, match.after)
    return {"match": match.match, "earlier": match.earlier, "before": before, "after": after, "drafted": match.drafted}


def _marginal(marginal: MarginalGains, text: TokenText) -> dict[str, Any]:
    return {
        "gains": [_round(value) for value in marginal.gains],
        "costs": [_round(value) for value in marginal.costs],
        "next_cost": _round(marginal.next_cost),
        "left_out": [
            {"parent": parent, "text": None if token is None else text.label(token), "gain": _round(gain)}
            for parent, token, gain in marginal.left_out
        ],
    }


def _likely_tokens(row: Likely, text: TokenText) -> dict[str, Any]:
    return {"texts": [text.label(token) for token, _ in row], "probs": [_round(probability) for _, probability in row]}


def _round(value: float | None) -> float | None:
    """Round to five significant digits, because records are often sent to the browser; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def pair_title(run: dict[str, Any]) -> str:
    """Return the names of a run's models, safe to show as markdown."""
    target, draft = (safe_name(Path(run.get(role) or f"demo {role}").name) for role in ("target", "draft"))
    return f"{target} without a draft" if run.get("draft") == NO_DRAFT else f"{target} ← {draft}"


def describe_settings(*runs: dict[str, Any]) -> str:
    """Describe the recorded pair, device and settings of a run, or of all runs in a race."""
    run = runs[0]
    parts = [pair_title(run), run.get("dtype"), run.get("device")]
    if run.get("offload") is not None:
        parts.append(f"target {TIER_NAMES[run['offload']]}")
    if run.get("prompt_ending") not in (None, RAW_ENDING):
        parts.append(run["prompt_ending"])
        parts += [f"{safe_name(name)} = {safe_name(f'{value}')}" for name, value in run["template_arguments"].items()]
    if run.get("temperature") is not None:
        parts.append(f"temperature {run['temperature']:g}")
    if run.get("temperature"):  # other sampling settings do not affect greedy decoding
        if run["top_p"] < 1:
            parts.append(f"top-p {run['top_p']:g}")
            if not run.get("first_cut") and run["verifier"] != TOPK:
                parts.append(FIRST_UNCUT)
        *others, last = dict.fromkeys(VERIFIER_NAMES[each["verifier"]] for each in runs)
        parts += [f"seed {run['seed']}", f"{', '.join(others)} and {last}" if others else last]
    if run.get("settings_left_out"):
        parts.append(f"without the target's default {', '.join(run['settings_left_out'])}")
    return ", ".join(filter(None, parts))


def summarize(run: Mapping[str, Any]) -> RunSummary:
    """Return a run's key figures, computed from the steps recorded so far."""
    steps = run["steps"]
    baseline = run["baseline"]
    interval = run.get("predicted_interval")
    return summarize_run(
        [len(step["pieces"]) for step in steps],
        [step["bonus"] is not None for step in steps],
        [step["seconds"] for step in steps],
        baseline=Baseline(baseline["tokens"], baseline["seconds"]) if baseline else None,
        expected_tokens=run["expected_tokens"],
        predicted_speedup=run["predicted_speedup"],
        predicted_interval=None if interval is None else (interval[0], interval[1]),
    )


def explain_speedup(summary: RunSummary) -> str:
    """Explain the measured speedup in one sentence."""
    measured = summary.speedup
    if summary.tokens_per_step is None:
        return "No steps were decoded."
    if measured is None:
        return "The autoregressive baseline has not been measured."
    if summary.tokens_ratio is None or summary.cost_ratio is None:
        expected = summary.expected_tokens
        expectation = "" if expected is None else f" ({expected:.2f} expected)"
        return (
            f"A step took as long as {summary.step_cost:.2f} plain tokens and yielded {summary.tokens_per_step:.2f}"
            f"{expectation}, hence {times(measured, ONE_PASS_DIGITS)}; no speed was predicted for this pair, these "
            "settings and this machine."
        )
    assert summary.outcome is not None and summary.slowest_phase is not None, "known if both ratios are"
    tokens = _compare(summary.tokens_ratio, "as many", "more", "fewer")
    verdict = " Speculation is slower than plain decoding here." if measured < 1 else ""
    return (
        f"{OUTCOME_TITLES[summary.outcome]}: a step yielded {tokens.format('tokens')} expected "
        f"({summary.tokens_per_step:.2f} against {summary.expected_tokens:.2f}) and took as long as "
        f"{summary.step_cost:.2f} plain tokens (predicted {summary.predicted_cost:.2f}), most of it "
        f"{PHASE_WORDS[summary.slowest_phase]}.{verdict}"
    )


def _compare(ratio: float, same: str, up: str, down: str) -> str:
    """Return a comparison with a placeholder for the noun, such as "12% more {} than"."""
    if abs(ratio - 1) < 0.02:
        return f"{same} {{}} as"
    if ratio >= 2:
        return f"{times(ratio)} as many {{}} as"
    return f"{abs(ratio - 1):.0%} {up if ratio > 1 else down} {{}} than"
