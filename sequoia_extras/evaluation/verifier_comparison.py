"""Compare the verifiers' tokens per step on the same tree at each sampling setting. m = prompts."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate, estimate, ratio_estimate, resample_prompts
from sequoia_core.acceptance.conditions import MEASURED_VERIFIERS, SEQUOIA
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import TOKENS_ONLY, DecodeStep
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import TreePolicy, as_policy
from sequoia_core.decoding.verifiers import GREEDY_VERIFIER, choose_verifiers
from sequoia_core.measuring.measure_acceptance import pair_settings
from sequoia_core.measuring.prompt_loop import Progress, Report, require_results, take_turns, tokens_within_context
from sequoia_core.measuring.ranks_along_text import DEFAULT_SEED, prompt_generators
from sequoia_core.models.language_model import ModelPair
from sequoia_core.trees.tree import TokenTree


class Method(NamedTuple):
    """A method of decoding the prompts; if `verifier` is None, the tree's default verifier is used."""

    name: str
    sampling: SamplingConfig
    tree: TokenTree | TreePolicy
    verifier: str | None


# `steps`, `yielded`, `committed` and `seconds` for one prompt, as in `TreeRun`.
Counts = tuple[int, int, int, float]


@dataclass(frozen=True, slots=True, eq=False)
class TreeRun:
    """Per-prompt results for one verifier or kind of tree at one sampling setting.

    Attributes:
        verifier: name of the verifier, or of the kind of tree used instead of the fixed tree.
        steps: int64 [m], number of steps.
        yielded: int64 [m], tokens that these steps yielded, including bonus tokens. A last step truncated by the length
            limit counts in full: the number of steps is then a stopping time, so yielded / steps is an unbiased
            estimate of F (Wald), whereas committed tokens would underestimate it.
        committed: int64 [m], tokens committed.
        seconds: float64 [m], wall time, including prefill.
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

    def row(self) -> dict[str, Any]:
        """Return a row as a plain dict, for a table or a file."""
        low, median, high = np.percentile(self.committed / self.seconds, [25, 50, 75]).tolist()
        tokens = self.tokens_per_step
        return {
            "verifier": self.verifier,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "tokens_per_sec": median,
            "tokens_per_sec_q1": low,
            "tokens_per_sec_q3": high,
            "tokens_per_step": tokens.value,
            "ci_low": tokens.low,
            "ci_high": tokens.high,
            "steps": int(self.steps.sum()),
        }


@dataclass(frozen=True, slots=True, eq=False)
class VerifierComparison:
    """The runs of all verifiers on the same tree and prompts, with the settings."""

    runs: tuple[TreeRun, ...]
    settings: dict[str, Any]

    def run(self, verifier: str, sampling: SamplingConfig) -> TreeRun:
        """Return a verifier's run; at temperature 0, every verifier is the greedy one."""
        for run in self.runs:
            if run.sampling == sampling and run.verifier in (verifier, GREEDY_VERIFIER.name):
                return run
        raise ValueError(f"{verifier} was not compared at {sampling}")

    def ratio(self, verifier: str, other: str, sampling: SamplingConfig) -> Estimate:
        """Estimate the ratio of two verifiers' tokens per step, resampling the same prompts for both."""
        first = self.run(verifier, sampling)
        second = self.run(other, sampling)
        value = first.tokens_per_step.value / second.tokens_per_step.value
        if len(first.steps) < 2:
            return Estimate(value, None, None)
        picks = resample_prompts(len(first.steps))
        samples = (picks @ first.yielded) / (picks @ first.steps) * (picks @ second.steps) / (picks @ second.yielded)
        return estimate(value, samples)

    def rows(self) -> list[dict[str, Any]]:
        return [run.row() for run in self.runs]

    def ratios(self) -> list[dict[str, Any]]:
        """Return Sequoia's tokens per step ÷ each other verifier's, as one plain dict per verifier and setting."""
        return [
            {
                "verifier": SEQUOIA,
                "other": run.verifier,
                "temperature": run.sampling.temperature,
                "top_p": run.sampling.top_p,
                **self.ratio(SEQUOIA, run.verifier, run.sampling).to_json(),
            }
            for run in self.runs
            if run.verifier not in (SEQUOIA, GREEDY_VERIFIER.name)
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
    """Decode the same prompts with the same tree and every verifier in turn (the paper's robustness study).

    Args:
        prompts: token ids of each prompt; preferably not the prompts that the tree was planned on.
        samplings: sampling settings, such as `sampling_grid([0, 0.6, 1])`; temperature 0 has one run, "greedy".
        policies: (sampling setting, name) -> additional trees to decode with, which use their default verifiers.
    """
    if not prompts or not samplings:
        raise ValueError(
            f"found {len(prompts)} prompts and {len(samplings)} sampling settings, expected one or more of each"
        )
    methods: list[Method] = []
    for sampling in dict.fromkeys(samplings):
        verifiers = choose_verifiers(MEASURED_VERIFIERS, greedy=sampling.greedy)
        methods += [Method(name, sampling, tree, name) for name in verifiers]
        methods += [Method(name, at, policy, None) for (at, name), policy in (policies or {}).items() if at == sampling]
    runs = decode_in_turns(prompts, methods, pair, max_new_tokens=max_new_tokens, progress=progress, cancel=cancel)
    settings = pair_settings(pair) | {
        "max_new_tokens": max_new_tokens,
        "seed": DEFAULT_SEED,
        "prompts": len(runs[0].steps),
        "tree": tree.parents.tolist(),
        "first_cut": True,
    }
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
    """Decode every prompt with every method in turn, and return one run per method.

    Raises:
        Cancelled: if cancelled before every method has decoded the first prompt.
    """
    cancel = cancel or threading.Event()
    deepest = max(as_policy(method.tree).max_depth for method in methods)
    limits = tokens_within_context(prompts, pair, max_new_tokens, depth=deepest)

    def run(
        method: Method, prompt: tuple[Sequence[int], int], length: int, number: int, report: Report
    ) -> Counts | None:
        ids, limit = prompt
        started = time.perf_counter()
        steps = decode_prompt(
            ids,
            pair,
            method.tree,
            method.sampling,
            method.verifier,
            min(length, limit),
            seed=DEFAULT_SEED,
            number=number,
            cancel=cancel,
        )
        seconds = time.perf_counter() - started
        committed = sum(len(step.new_tokens) for step in steps)
        return None if cancel.is_set() else (len(steps), count_yielded_tokens(steps), committed, seconds)

    decoders = {
        f"method {number} of {len(methods)}": partial(run, method) for number, method in enumerate(methods, start=1)
    }
    rows: dict[str, list[Counts]] = {name: [] for name in decoders}
    limited = list(zip(prompts, limits, strict=True))
    for name, counts in take_turns(decoders, limited, max_new_tokens, progress=progress, cancel=cancel):
        rows[name].append(counts)
    complete = min(map(len, rows.values()))
    require_results(range(complete), "decoding")
    return tuple(
        TreeRun(method.name, method.sampling, *map(np.array, zip(*counts[:complete], strict=True)))
        for method, counts in zip(methods, rows.values(), strict=True)
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
            prompt,
            pair,
            tree=tree,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            verifier=None if verifier == GREEDY_VERIFIER.name else verifier,
            generator=prompt_generators(seed, number)[0],
            cancel=cancel,
            details=TOKENS_ONLY,
        )
    )


def count_yielded_tokens(steps: Sequence[DecodeStep]) -> int:
    """Return the number of tokens that steps yield, including those truncated by the length limit but not after EOS.

    The number of steps is then a stopping time, so the mean of this count per step is unbiased.
    """
    return sum(len(step.new_tokens) + step.cut_by_length for step in steps)
