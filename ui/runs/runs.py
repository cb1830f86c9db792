"""The record of one decode: what was asked, every step, the baseline; and its figures in words.

A run is one plain dict (`format: sequoia-run`): header, baseline, shapes of trees, step records. n = nodes of a step's
tree including the root.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, with_config
from typing_extensions import TypedDict  # before Python 3.12 pydantic knows no other

from sequoia_core.design.conditions import FIRST_UNCUT, TOPK
from sequoia_core.design.profile import PLACES
from sequoia_core.design.tree import TokenTree
from sequoia_core.files.model_names import NO_DRAFT
from sequoia_core.models.chat import Turn
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import RAW, Prompting
from sequoia_core.studies.run_summary import Baseline, RunSummary, summarize_run
from ui.markdown import safe_name
from ui.token_text import TokenText
from ui.token_tree.steering import Steering
from ui.tree_layout import MAX_DRAWN
from ui.verifier_names import NAMES

if TYPE_CHECKING:
    from sequoia_core import DecodeStep
    from sequoia_core.decoding.explaining import Likely
    from sequoia_core.decoding.growing.text_index import TextIndex
    from sequoia_core.decoding.node_facts import MarginalGains, Occurrence
    from sequoia_core.decoding.tree_policy import TreePolicy

FORMAT, VERSION = "sequoia-run", 2
MAX_LIKELY = 100
Positive = Annotated[FiniteFloat, Field(ge=0)]
Chance = Annotated[FiniteFloat, Field(ge=0, le=1)]
Accepted = Literal["sequoia", "specinfer", "topk", "best"]
OUTCOME_CODES = {"accepted": "A", "rejected": "R", "not reached": "N"}
OUTCOMES = {
    "held": "The prediction held",
    "beaten": "The run beat the prediction",
    "missed": "The run fell short of the prediction",
}
PHASE_WORDS = {"draft": "drafting", "verify": "verifying", "walk": "walking", "commit": "committing"}


class LikelyTokens(TypedDict):
    texts: Annotated[list[str], Field(max_length=MAX_LIKELY)]
    probs: list[Chance]


class PathRows(TypedDict):
    node: int
    target: LikelyTokens
    draft: LikelyTokens
    residuals: Annotated[list[LikelyTokens], Field(max_length=MAX_DRAWN)]  # of the target, after each rejection
    accepted: NotRequired[dict[Accepted, Chance] | None]  # how often one of the children is, on average


class LeftOut(TypedDict):
    parent: Annotated[int, Field(ge=0)]
    text: str | None  # None for a first child of a node that the draft did not read
    gain: Chance


class Marginal(TypedDict):
    gains: list[Chance]
    costs: list[Positive | None]
    next_cost: Positive | None
    left_out: Annotated[list[LeftOut], Field(max_length=MAX_LIKELY)]


class FoundAt(TypedDict):
    match: Annotated[int, Field(ge=1)]  # tokens before it that are the same
    earlier: bool  # in an earlier text, not in this one
    before: str
    after: str  # the token itself and what followed it
    drafted: NotRequired[bool]  # the draft gave it a probability too


@with_config(ConfigDict(strict=True))
class StepRecord(TypedDict):
    """A step as the live tree and a file hold it; older files lack some fields."""

    index: int
    shape: Annotated[int, Field(ge=0)]  # which of the run's trees the step had
    tokens: list[str]  # [n]
    outcomes: Annotated[str, Field(pattern="^[ARN]*$")]  # n letters of OUTCOME_CODES
    draft: list[FiniteFloat | None]  # [n] probabilities
    target: list[FiniteFloat | None]
    path: Annotated[list[int], Field(min_length=1)]  # node ids
    bonus: str | None  # None when the run ended before it
    pieces: list[str]  # text of each committed token
    trials: list[Annotated[list[FiniteFloat | None], Field(min_length=4, max_length=4)]]  # [node, r, R[s], D[s]]
    seconds: Annotated[list[Positive], Field(min_length=4, max_length=4)]  # draft, verify, walk, commit
    read_wait_sec: NotRequired[Positive]  # of these, waited for weights
    finished: Literal["eos", "length", "context"] | None
    rows: NotRequired[list[PathRows]]  # one for each node of the path
    marginal: NotRequired[Marginal | None]  # of a tree that took shape in the step
    found_at: NotRequired[list[FoundAt | None]]  # [n], where each node was looked up; None for one that was not


def step_record(step: DecodeStep, text: TokenText, shape: int = 0) -> StepRecord:
    """Turn a step into what the live tree and a file hold; `shape` is which of the run's trees it had."""
    record: StepRecord = {
        "index": step.index,
        "shape": shape,
        "tokens": [text.label(token) for token in step.tokens],
        "outcomes": "".join(OUTCOME_CODES[outcome] for outcome in step.outcomes),
        "draft": [_finite(value) for value in step.draft_probs],
        "target": [_finite(value) for value in step.target_probs],
        "path": [int(node) for node in step.accepted_path],
        "bonus": None if step.bonus_token is None else text.label(step.bonus_token),
        "pieces": text.pieces(step.new_tokens),
        "trials": [[int(t.node), *map(_finite, (t.uniform, t.target_mass, t.draft_mass))] for t in step.trials],
        "seconds": [step.draft_sec, step.verify_sec, step.walk_sec, step.commit_sec],
        "read_wait_sec": step.read_wait_sec,
        "finished": step.finished,
        "rows": [
            {
                "node": rows.node,
                "target": _likely(rows.target, text),
                "draft": _likely(rows.draft, text),
                "residuals": [_likely(residual, text) for residual in rows.residuals],
                "accepted": rows.accepted and {name: _finite(share) for name, share in rows.accepted.items()},
            }
            for rows in step.path_rows
        ],
    }
    if step.occurrences:
        record["found_at"] = [found and _found_at(found, text) for found in step.occurrences]
    if step.marginal_gains is not None:
        record["marginal"] = _marginal(step.marginal_gains, text)
    return record


def _found_at(found: Occurrence, text: TokenText) -> FoundAt:
    before, after = text.passage(found.before, found.after)
    return {"match": found.match, "earlier": found.earlier, "before": before, "after": after, "drafted": found.drafted}


def _marginal(found: MarginalGains, text: TokenText) -> Marginal:
    return {
        "gains": [_rounded(value) for value in found.gains],
        "costs": [_finite(value) for value in found.costs],
        "next_cost": _finite(found.next_cost),
        "left_out": [
            {"parent": parent, "text": None if token is None else text.label(token), "gain": _rounded(gain)}
            for parent, token, gain in found.left_out
        ],
    }


def _likely(row: Likely, text: TokenText) -> LikelyTokens:
    return {"texts": [text.label(token) for token, _ in row], "probs": [_rounded(chance) for _, chance in row]}


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else _rounded(value)


def _rounded(value: float) -> float:
    """Return a plain number short enough to send often."""
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One decode as asked for, and what was predicted for it.

    Attributes:
        prompt: replaced, in the run, by what the chat template makes of `turns`, where there are any.
        turns: a conversation, the user's turn that asks for this run last.
        models: the pair, and its dtype.
        expected_tokens: F of the tree; predicted_speedup: against autoregressive. None where nothing that was measured
            holds for this pair, these settings and this machine. predicted_interval: 95% bounds for one prompt.
        steering: takes the page's wishes while it runs.
        prompting: how the prompt goes to the model; a conversation always through the chat template.
        earlier: gets prompt and answer once the decode has finished.
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
        """Return what a run holds besides its steps and its baseline; what only the loaded pair tells is None."""
        target, draft = self.models.names
        return {
            "format": FORMAT,
            "version": VERSION,
            "id": uuid.uuid4().hex[:12],
            "prompt": self.prompt,
            "turns": [asdict(turn) for turn in self.turns],
            "remarks": [],
            "prompt_ending": None,
            "template_arguments": dict(self.prompting.arguments),
            "tree_source": self.tree_source,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "first_cut": self.verifier != TOPK if self.temperature and self.top_p < 1 else None,
            "max_new_tokens": self.max_new_tokens,
            "verifier": self.verifier,
            "seed": self.seed,
            "target": target,
            "draft": draft,
            "head": False,
            "dtype": None,
            "offload": self.models.offload,
            "device": None,
            "settings_left_out": [],
            "read_bytes_per_sec": None,
            "expected_tokens": self.expected_tokens,
            "predicted_speedup": self.predicted_speedup,
            "predicted_interval": None if self.predicted_interval is None else list(self.predicted_interval),
            "baseline": None,
            "text": "",
            "shapes": [],
            "steps": [],
        }


class Recorder:
    """Fills a run with steps, and lists each shape of tree once, when it first occurs."""

    def __init__(self, run: dict[str, Any], text: TokenText) -> None:
        self._run, self._text = run, text
        self._shapes: dict[TokenTree, int] = {}

    def add(self, step: DecodeStep) -> StepRecord:
        """Add a step to the run -> its record."""
        shape = self._shapes.setdefault(step.tree, len(self._shapes))
        if shape == len(self._run["shapes"]):  # before the step that names it: pages read while this writes
            self._run["shapes"].append(step.tree.parents.tolist())
        record = step_record(step, self._text, shape)
        self._run["steps"].append(record)
        return record


def pair_of(run: dict[str, Any]) -> str:
    """Name the models of a run for people, safe in markdown."""
    target, draft = (safe_name(Path(run.get(role) or f"demo {role}").name) for role in ("target", "draft"))
    return f"{target} without a draft" if run.get("draft") == NO_DRAFT else f"{target} ← {draft}"


def made_with(*several: dict[str, Any]) -> str:
    """Say what a run, or each run of a race, was made with, as far as the record says it."""
    run = several[0]
    parts = [pair_of(run), run.get("dtype"), run.get("device")]
    if run.get("offload") is not None:
        parts.append(f"target {PLACES[run['offload']]}")
    if run.get("prompt_ending") not in (None, RAW):
        parts.append(run["prompt_ending"])
        parts += [f"{safe_name(name)} = {safe_name(f'{value}')}" for name, value in run["template_arguments"].items()]
    if run.get("temperature") is not None:
        parts.append(f"temperature {run['temperature']:g}")
    if run.get("temperature"):  # greedy decoding is the same with every other setting
        uncut = "" if run.get("first_cut") or run["verifier"] == TOPK else f", {FIRST_UNCUT}"
        parts += [f"top-p {run['top_p']:g}{uncut}"] if run["top_p"] < 1 else []
        *others, last = dict.fromkeys(NAMES[each["verifier"]] for each in several)
        parts += [f"seed {run['seed']}", f"{', '.join(others)} and {last}" if others else last]
    if run.get("settings_left_out"):
        parts.append(f"without the target's own {', '.join(run['settings_left_out'])}")
    return ", ".join(filter(None, parts))


def summary_of(run: Mapping[str, Any]) -> RunSummary:
    """Return the figures of a run from its step records, so far as there are any."""
    steps, baseline, interval = run["steps"], run["baseline"], run.get("predicted_interval")
    return summarize_run(
        [len(step["pieces"]) for step in steps],
        [step["bonus"] is not None for step in steps],
        [step["seconds"] for step in steps],
        baseline=Baseline(baseline["tokens"], baseline["seconds"]) if baseline else None,
        expected_tokens=run["expected_tokens"],
        predicted_speedup=run["predicted_speedup"],
        predicted_interval=None if interval is None else (interval[0], interval[1]),
    )


def explain(summary: RunSummary) -> str:
    """Say in one sentence why the measured speedup is what it is."""
    measured = summary.speedup
    if summary.tokens_per_step is None:
        return "No step was decoded."
    if measured is None:
        return "The autoregressive run that the speed is compared with has not been measured."
    if summary.tokens_ratio is None or summary.cost_ratio is None:
        expected = summary.expected_tokens
        yields = "" if expected is None else f" ({expected:.2f} were expected)"
        return (
            f"A step took as long as {summary.step_cost:.2f} plain tokens and yields {summary.tokens_per_step:.2f}"
            f"{yields}, hence {measured:.2f}×; no speed was predicted for this pair, these settings and this machine."
        )
    assert summary.outcome is not None and summary.slowest_phase is not None, "known where both ratios are"
    tokens = _change(summary.tokens_ratio, "as many", "more", "fewer")
    verdict = " Speculation is slower than plain decoding here." if measured < 1 else ""
    return (
        f"{OUTCOMES[summary.outcome]}: a step yielded {tokens.format('tokens')} expected "
        f"({summary.tokens_per_step:.2f} against {summary.expected_tokens:.2f}) and took as long as "
        f"{summary.step_cost:.2f} plain tokens (predicted {summary.predicted_cost:.2f}), most of it "
        f"{PHASE_WORDS[summary.slowest_phase]}.{verdict}"
    )


def _change(ratio: float, same: str, up: str, down: str) -> str:
    """Return a phrase with a place for the noun, such as "12% more {} than"."""
    if abs(ratio - 1) < 0.02:
        return f"{same} {{}} as"
    return f"{abs(ratio - 1):.0%} {up if ratio > 1 else down} {{}} than"
