"""The same fixed tree under every verifier and way of sampling: tokens per step by real decoding. m = prompts."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..decoding.loop import decode
from ..decoding.record import TOKENS_ONLY, DecodeStep
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import TreePolicy, policy_of
from ..decoding.verifiers import GREEDY, choose_verifiers
from ..design.bootstrap import Estimate, estimate, ratio_estimate, resampled
from ..design.conditions import SEQUOIA, VERIFIERS
from ..design.tree import TokenTree
from ..models.language_model import ModelPair
from .measure_acceptance import pair_settings
from .prompt_loop import Progress, Report, one_by_one, require_a_prompt, room_after
from .ranks_along_text import prompt_generators

if TYPE_CHECKING:
    import pandas as pd

# what the runs are called, how the target is sampled, the trees, and the verifier; None for the trees' own
Method = tuple[str, SamplingConfig, TokenTree | TreePolicy, str | None]


@dataclass(frozen=True, slots=True, eq=False)
class TreeRun:
    """What one verifier did with the tree at one way of sampling, prompt by prompt.

    Attributes:
        verifier: or the name of the trees that were decoded in place of the fixed one.
        steps: int64 [m].
        yielded: int64 [m], tokens of those steps taken whole, bonus tokens counted. A last step that was cut at the
            limit counts in full. The number of steps is then a stopping time, and yielded / steps estimates F without
            bias (Wald), where committed tokens would understate it.
        committed: int64 [m], tokens written.
        seconds: float64 [m], wall time, prompt included.
    """

    verifier: str
    sampling: SamplingConfig
    steps: np.ndarray
    yielded: np.ndarray
    committed: np.ndarray
    seconds: np.ndarray

    @property
    def tokens_per_step(self) -> Estimate:
        return ratio_estimate(self.yielded, self.steps)

    @property
    def rates(self) -> np.ndarray:
        """Tokens per second of each prompt, float64 [m]."""
        return self.committed / self.seconds

    def to_json(self) -> dict[str, Any]:
        low, middle, high = np.percentile(self.rates, [25, 50, 75])
        return {
            "verifier": self.verifier,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "tokens_per_step": self.tokens_per_step.to_json(),
            "tokens_per_sec": float(middle),
            "tokens_per_sec_quartiles": [float(low), float(high)],
            "steps": self.steps.tolist(),
            "yielded": self.yielded.tolist(),
            "committed": self.committed.tolist(),
            "seconds": self.seconds.tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class VerifierComparison:
    """Every verifier on the same tree and prompts, with the settings."""

    runs: tuple[TreeRun, ...]
    settings: dict[str, Any]

    def run(self, verifier: str, sampling: SamplingConfig) -> TreeRun:
        """Return one run; at temperature 0 every name means the greedy one."""
        runs = {(run.verifier, run.sampling): run for run in self.runs}
        for name in (verifier, GREEDY.name) if sampling.greedy else (verifier,):
            if (name, sampling) in runs:
                return runs[name, sampling]
        raise ValueError(f"found no run of {verifier} at {sampling}, expected one of those compared")

    def ratio(self, verifier: str, other: str, sampling: SamplingConfig) -> Estimate:
        """Estimate tokens per step of one verifier ÷ those of another; prompts are resampled for both at once."""
        ours, theirs = self.run(verifier, sampling), self.run(other, sampling)
        value = ours.tokens_per_step.value / theirs.tokens_per_step.value
        if len(ours.steps) < 2:
            return Estimate(value, None, None)
        picks = resampled(len(ours.steps))
        samples = (picks @ ours.yielded) / (picks @ ours.steps) * (picks @ theirs.steps) / (picks @ theirs.yielded)
        return estimate(value, samples)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per run, for a table or a file."""
        rows = []
        for run in self.runs:
            row, tokens = run.to_json(), run.tokens_per_step
            quartiles = row["tokens_per_sec_quartiles"]
            rows.append(
                {key: row[key] for key in ("verifier", "temperature", "top_p", "tokens_per_sec")}
                | {"tokens_per_sec_q1": quartiles[0], "tokens_per_sec_q3": quartiles[1]}
                | {"tokens_per_step": tokens.value, "ci_low": tokens.low, "ci_high": tokens.high}
                | {"steps": int(run.steps.sum())}
            )
        return rows

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.rows())

    def ratios(self, verifier: str = "sequoia") -> list[dict[str, Any]]:
        """Return one plain row per rival and way of sampling: tokens per step of `verifier` ÷ those of the rival."""
        return [
            {
                "verifier": verifier,
                "other": run.verifier,
                "temperature": run.sampling.temperature,
                "top_p": run.sampling.top_p,
                **self.ratio(verifier, run.verifier, run.sampling).to_json(),
            }
            for run in self.runs
            if run.verifier not in (verifier, GREEDY.name)
        ]

    def to_json(self) -> dict[str, Any]:
        names = {run.verifier for run in self.runs}
        ratios = self.ratios() if SEQUOIA in names else []
        return {"settings": self.settings, "runs": [run.to_json() for run in self.runs], "ratios": ratios}


def compare_verifiers(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    tree: TokenTree,
    samplings: Sequence[SamplingConfig],
    verifiers: Sequence[str] = VERIFIERS,
    policies: Mapping[tuple[SamplingConfig, str], TreePolicy] | None = None,
    max_new_tokens: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> VerifierComparison:
    """Decode the same prompts with the same tree under every verifier, taking turns (the paper's robustness study).

    Args:
        prompts: token ids; they should not be those the tree was planned on.
        samplings: such as `sampling_grid([0, 0.6, 1])`; at temperature 0 there is one run, "greedy".
        policies: way of sampling and a name -> trees to decode beside the fixed one, by their own verifier.
        cancel: looked at within every step; prompts complete under every verifier are kept.

    Raises:
        Cancelled: before the first prompt was complete.
    """
    policies = policies or {}
    if not prompts or not samplings:
        raise ValueError(f"found {len(prompts)} prompts and {len(samplings)} samplings, expected some of each")
    methods: list[Method] = []
    for sampling in dict.fromkeys(samplings):
        methods += [(name, sampling, tree, name) for name in choose_verifiers(verifiers, greedy=sampling.greedy)]
        methods += [(name, sampling, policy, None) for (at, name), policy in policies.items() if at == sampling]
    runs = decode_in_turns(
        prompts, methods, pair, max_new_tokens=max_new_tokens, seed=seed, progress=progress, cancel=cancel
    )
    settings = pair_settings(pair) | {
        "max_new_tokens": max_new_tokens, "seed": seed, "prompts": len(runs[0].steps), "tree": tree.parents.tolist(),
        "first_cut": True,
    }  # fmt: skip
    return VerifierComparison(runs, settings)


def decode_in_turns(
    prompts: Sequence[Sequence[int]],
    methods: Sequence[Method],
    pair: ModelPair,
    *,
    max_new_tokens: int,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[TreeRun, ...]:
    """Decode every prompt by every method, which take turns -> a run for each method; Cancelled before the first."""
    cancel = cancel or threading.Event()
    deepest = max(policy_of(tree).max_depth for _, _, tree, _ in methods)
    rooms = room_after(prompts, pair.models, max_new_tokens, depth=deepest)

    def run(number: int, method: Method, length: int) -> list[DecodeStep]:
        _, sampling, tree, verifier = method
        return decode_prompt(
            prompts[number], pair, tree, sampling, verifier, length, seed=seed, number=number, cancel=cancel
        )

    for method in methods:  # warm-up: first calls allocate and pick kernels
        run(0, method, min(4, rooms[0]))

    def measure(number: int, report: Report) -> list[tuple[int, int, int, float]] | None:
        by_method: dict[int, tuple[int, int, int, float]] = {}
        for turn in range(len(methods)):
            index = (number + turn) % len(methods)
            started = time.perf_counter()
            steps = run(number, methods[index], rooms[number])
            seconds = time.perf_counter() - started
            if cancel.is_set():
                return None
            committed = sum(len(step.new_tokens) for step in steps)
            by_method[index] = (len(steps), whole_tokens(steps), committed, seconds)
            report((turn + 1) / len(methods))
        return [by_method[index] for index in range(len(methods))]

    rows = list(one_by_one(len(prompts), measure, progress=progress, cancel=cancel))
    require_a_prompt(rows, "decoding")
    return tuple(
        TreeRun(name, sampling, *(np.array(column) for column in zip(*by_prompt, strict=True)))
        for (name, sampling, *_), by_prompt in zip(methods, zip(*rows, strict=True), strict=True)
    )


def decode_prompt(
    prompt: Sequence[int],
    pair: ModelPair,
    tree: TokenTree | TreePolicy,
    sampling: SamplingConfig,
    verifier: str | None,
    max_new_tokens: int,
    *,
    seed: int,
    number: int,
    cancel: threading.Event,
) -> list[DecodeStep]:
    return list(
        decode(
            prompt, pair, tree=tree, sampling=sampling, max_new_tokens=max_new_tokens,
            verifier=None if verifier == GREEDY.name else verifier, generator=prompt_generators(seed, number)[0],
            cancel=cancel, details=TOKENS_ONLY,
        )
    )  # fmt: skip


def whole_tokens(steps: Sequence[DecodeStep]) -> int:
    """Return the tokens that steps yield, those beyond a length that was asked for too; after an end nothing counts.

    A run of n steps is stopped by a length where it first passes it, so these over n have the mean of a step.
    """
    return sum(len(step.new_tokens) + step.cut_by_length for step in steps)
