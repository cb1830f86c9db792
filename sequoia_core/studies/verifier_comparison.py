"""The same fixed tree under every verifier and way of sampling: tokens per step by real decoding. m = prompts."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from .prompt_loop import Progress, Report, require_a_prompt, room_after, take_turns
from .ranks_along_text import SEED, prompt_generators

# what the runs are called, how the target is sampled, the trees, and the verifier; None for the trees' own
Method = tuple[str, SamplingConfig, TokenTree | TreePolicy, str | None]
Counts = tuple[int, int, int, float]  # of one prompt: the columns of a `TreeRun`


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

    def row(self) -> dict[str, Any]:
        """Return a plain row, for a table or a file."""
        (low, middle, high), tokens = np.percentile(self.rates, [25, 50, 75]).tolist(), self.tokens_per_step
        return {
            "verifier": self.verifier, "temperature": self.sampling.temperature, "top_p": self.sampling.top_p,
            "tokens_per_sec": middle, "tokens_per_sec_q1": low, "tokens_per_sec_q3": high,
            "tokens_per_step": tokens.value, "ci_low": tokens.low, "ci_high": tokens.high,
            "steps": int(self.steps.sum()),
        }  # fmt: skip


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
        return [run.row() for run in self.runs]

    def ratios(self) -> list[dict[str, Any]]:
        """Return one plain row per rival and way of sampling: tokens per step of Sequoia's ÷ those of the rival."""
        return [
            {
                "verifier": SEQUOIA,
                "other": run.verifier,
                "temperature": run.sampling.temperature,
                "top_p": run.sampling.top_p,
                **self.ratio(SEQUOIA, run.verifier, run.sampling).to_json(),
            }
            for run in self.runs
            if run.verifier not in (SEQUOIA, GREEDY.name)
        ]


def compare_verifiers(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    tree: TokenTree,
    samplings: Sequence[SamplingConfig],
    policies: Mapping[tuple[SamplingConfig, str], TreePolicy] | None = None,
    max_new_tokens: int = 64,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> VerifierComparison:
    """Decode the same prompts with the same tree under every verifier, taking turns (the paper's robustness study).

    Args:
        prompts: token ids; they should not be those the tree was planned on.
        samplings: such as `sampling_grid([0, 0.6, 1])`; at temperature 0 there is one run, "greedy".
        policies: way of sampling and a name -> trees to decode beside the fixed one, by their own verifier.
    """
    policies = policies or {}
    if not prompts or not samplings:
        raise ValueError(f"found {len(prompts)} prompts and {len(samplings)} samplings, expected some of each")
    methods: list[Method] = []
    for sampling in dict.fromkeys(samplings):
        methods += [(name, sampling, tree, name) for name in choose_verifiers(VERIFIERS, greedy=sampling.greedy)]
        methods += [(name, sampling, policy, None) for (at, name), policy in policies.items() if at == sampling]
    runs = decode_in_turns(prompts, methods, pair, max_new_tokens=max_new_tokens, progress=progress, cancel=cancel)
    settings = pair_settings(pair) | {
        "max_new_tokens": max_new_tokens, "seed": SEED, "prompts": len(runs[0].steps), "tree": tree.parents.tolist(),
        "first_cut": True,
    }  # fmt: skip
    return VerifierComparison(runs, settings)


def decode_in_turns(
    prompts: Sequence[Sequence[int]],
    methods: Sequence[Method],
    pair: ModelPair,
    *,
    max_new_tokens: int,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[TreeRun, ...]:
    """Decode every prompt by every method, which take turns -> a run for each method; Cancelled before the first."""
    cancel = cancel or threading.Event()
    deepest = max(policy_of(tree).max_depth for _, _, tree, _ in methods)
    rooms = room_after(prompts, pair, max_new_tokens, depth=deepest)

    def decoder(sampling: SamplingConfig, tree: TokenTree | TreePolicy, verifier: str | None):
        def run(asked: tuple[Sequence[int], int], length: int, number: int, report: Report) -> Counts | None:
            prompt, room = asked
            started = time.perf_counter()
            steps = decode_prompt(
                prompt, pair, tree, sampling, verifier, min(length, room), seed=SEED, number=number, cancel=cancel
            )
            seconds = time.perf_counter() - started
            committed = sum(len(step.new_tokens) for step in steps)
            return None if cancel.is_set() else (len(steps), whole_tokens(steps), committed, seconds)

        return run

    decoders = {
        f"{number} of {len(methods)} ways": decoder(sampling, tree, verifier)
        for number, (_, sampling, tree, verifier) in enumerate(methods, start=1)
    }
    rows: dict[str, list[Counts]] = {name: [] for name in decoders}
    asked = list(zip(prompts, rooms, strict=True))
    for name, counts in take_turns(decoders, asked, max_new_tokens, progress=progress, cancel=cancel):
        rows[name].append(counts)
    complete = min(map(len, rows.values()))  # by every method
    require_a_prompt(range(complete), "decoding")
    return tuple(
        TreeRun(name, sampling, *map(np.array, zip(*counts[:complete], strict=True)))
        for (name, sampling, *_), counts in zip(methods, rows.values(), strict=True)
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
