"""The losslessness check as a worker job and its record as plain rows, without Streamlit. c = number of cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import encode_prompt
from ui.exact.wording import Row
from ui.jobs.jobs import JobContext
from ui.token_text import text_after

if TYPE_CHECKING:
    from sequoia_core import TokenTree
    from sequoia_core.decoding.tree_policy import TreePolicy
    from sequoia_extras.evaluation.losslessness import LosslessnessReport

Work = Callable[[JobContext], Row]
COMPARED_TOKENS = 2  # number of tokens compared per continuation
NORMAL_95 = 1.96  # two-sided 95% quantile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """The settings of the decoding to check.

    Attributes:
        pair: the pair's display name, worded to follow "the".
        tree: the fixed tree; if there is a policy, the bound on the policy's trees.
        tree_source: description of the tree's origin, for display.
        policy: policy used instead of the fixed tree, with its own verifier; None for the fixed tree.
    """

    pair: str
    tree: TokenTree
    tree_source: str
    prompt: str
    temperature: float = 1.0
    top_p: float = 1.0
    models: PairSpec = PairSpec()
    policy: TreePolicy | None = None


def lossless_work(subject: CheckSubject, *, verifier: str, samples: int, seed: int = 0) -> Work:
    """Return the job that decodes the prompt `samples` times and tests the continuations."""
    policy = subject.policy
    rule = verifier if policy is None else policy.verifiers[0]

    def work(context: JobContext) -> Row:
        import torch

        from sequoia_core import SamplingConfig
        from sequoia_extras.evaluation.losslessness import check_losslessness

        pair = context.pair(subject.models)
        prompt = encode_prompt(pair, subject.prompt)
        report = check_losslessness(
            prompt,
            pair,
            tree=policy or subject.tree,
            sampling=SamplingConfig(subject.temperature, subject.top_p),
            verifier=rule,
            samples=samples,
            new_tokens=COMPARED_TOKENS,
            generator=torch.Generator().manual_seed(seed),
            progress=context.progress,
            cancel=context.cancel,
        )
        texts = [text_after(pair.tokenizer.decode, prompt[-1:], cell) for cell in report.cells]
        settings = {
            "pair": subject.pair,
            "tree": subject.tree.parents.tolist(),
            "tree_source": subject.tree_source,
            "prompt": subject.prompt,
            "temperature": subject.temperature,
            "top_p": subject.top_p,
            "verifier": rule,
            "samples_asked": samples,
            "new_tokens": COMPARED_TOKENS,
            "seed": seed,
        }
        if report.difference is not None:
            settings["difference"] = report.difference.words(pair.tokenizer.decode)
        return losslessness_record(report, texts, settings)

    return work


def losslessness_record(report: LosslessnessReport, texts: Sequence[str], settings: dict[str, Any]) -> Row:
    """Return the record of a check; `texts` are the decoded cells of the report."""
    from sequoia_extras.evaluation.losslessness import FALSE_ALARM_RATE

    low, high = count_bounds(report.expected, report.samples)
    cells = pd.DataFrame(
        {
            "text": texts,
            "tokens": [list(cell) for cell in report.cells],
            "pooled": report.pooled,
            "observed": report.observed,
            "expected": report.expected,
            "expected_low": low,
            "expected_high": high,
        }
    )
    return {
        "settings": settings,
        "samples": report.samples,
        "statistic": float(report.statistic) if math.isfinite(report.statistic) else None,
        "degrees_of_freedom": report.degrees_of_freedom,
        "p_value": report.p_value,
        "threshold": report.threshold,
        "false_alarm": FALSE_ALARM_RATE,
        "impossible": report.impossible,
        "passed": report.passed,
        "cells": cells.to_dict("records"),
    }


def count_bounds(expected: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper 95% bounds of multinomial counts, float64 [c] each, by normal approximation."""
    half = NORMAL_95 * np.sqrt(expected * (1.0 - expected / samples))
    return np.maximum(expected - half, 0.0), expected + half
