"""What the engine's worker does for the evidence page: work that leaves records; no Streamlit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import encode_prompt
from ui.exact import records, wording
from ui.exact.spread import decoding_speed
from ui.exact.wording import Row
from ui.jobs.jobs import Job, JobContext
from ui.token_text import text_after

if TYPE_CHECKING:
    import torch

    from sequoia_core import AcceptanceVector, SamplingConfig, TokenTree
    from sequoia_core.decoding.tree_policy import TreePolicy
    from sequoia_core.models.language_model import ModelPair

Work = Callable[[JobContext], Row]
RANKS = 16  # children of a node that the rejection curves ask about
COMPARED_TOKENS = 2  # of each continuation, in the losslessness check


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured on: the pair, the tree, the prompts.

    Attributes:
        pair: its name for people, to follow "the".
        tree_source: where the tree comes from, for people.
        calibrated: (temperature, top-p) -> a vector that tells hybrid trees the draft's chances there.
    """

    pair: str
    tree: TokenTree
    tree_source: str
    prompts: tuple[str, ...]
    max_new_tokens: int = 48
    models: PairSpec = PairSpec()
    calibrated: Mapping[tuple[float, float], AcceptanceVector] = field(default_factory=dict)

    def load(self, context: JobContext) -> tuple[ModelPair, list[list[int]]]:
        """Return the pair and the prompts' tokens."""
        pair = context.pair(self.models)
        return pair, [encode_prompt(pair, text) for text in self.prompts]

    def settings(self) -> Row:
        return {"pair": self.pair, "tree": self.tree.parents.tolist(), "tree_source": self.tree_source}

    def trees(self, kind: str, sampling: SamplingConfig) -> TokenTree | TreePolicy | None:
        """Return the tree, SpecInfer's own, or trees of text already seen that are no larger or deeper, at no cost.

        `kind` is "" for the tree, "specinfer_tree", or one of `TREE_KINDS`, which a vector may have to calibrate.
        """
        from sequoia_core.decoding.tree_policy import SPECINFER_TREE

        if not kind:
            return self.tree
        if kind == "specinfer_tree":
            return SPECINFER_TREE
        bounds = {"max_size": self.tree.size, "max_depth": max(self.tree.depth, 1)}
        chosen, vector = TREE_KINDS[kind], self.calibrated.get((sampling.temperature, sampling.top_p))
        return None if chosen.calibrated and vector is None else chosen.make(vector, **bounds)


def compare_work(
    subject: Subject, temperatures: Sequence[float], top_ps: Sequence[float], beside: Sequence[str] = ()
) -> Work:
    """Return the work of comparing the verifiers on the tree and other kinds of trees, then rank by rank."""

    def work(context: JobContext) -> Row:
        from sequoia_core.studies.rejection_curves import measure_rejection, sampling_grid
        from sequoia_core.studies.verifier_comparison import compare_verifiers

        samplings = sampling_grid(temperatures, top_ps)
        pair, prompts = subject.load(context)
        common: dict[str, Any] = {
            "samplings": samplings,
            "max_new_tokens": subject.max_new_tokens,
            "cancel": context.cancel,
        }
        progress = context.part(0.02, 0.65, "Decoding with every verifier")
        policies = {(sampling, kind): subject.trees(kind, sampling) for sampling in samplings for kind in beside}
        known = {key: policy for key, policy in policies.items() if policy is not None}
        found = compare_verifiers(prompts, pair, **common, tree=subject.tree, policies=known, progress=progress)
        settings = subject.settings() | {"beside": list(beside)}
        record = records.comparison_record(found, **settings)
        context.keep(record)
        if context.cancel.is_set():
            return record
        progress = context.part(0.65, 0.72, "Timing without a draft")
        baseline = _baseline(pair, prompts, samplings, subject.max_new_tokens, context, progress)
        record = records.comparison_record(found, baseline=baseline, **settings)
        context.keep(record)
        if context.cancel.is_set():
            return record
        progress = context.part(0.72, 1.0, "Rejection by rank")
        width = min(RANKS, pair.vocab_size)
        study = measure_rejection(prompts, pair, **common, width=width, progress=progress)
        return record | {"rejection": study.rows()}

    return work


def _baseline(
    pair: ModelPair,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingConfig],
    max_new_tokens: int,
    context: JobContext,
    progress: Callable[[float, str], None],
) -> list[Row]:
    """Time the target alone at every way of sampling; nothing for those that a cancel leaves incomplete."""
    from sequoia_core import autoregressive

    rows: list[Row] = []
    for place, sampling in enumerate(samplings):
        tokens, seconds = [], []
        for number, prompt in enumerate([prompts[0], *prompts]):  # the first one warms up
            started = time.perf_counter()
            options = {"sampling": sampling, "cancel": context.cancel, "generator": _generator(number)}
            steps = list(autoregressive(prompt, pair, max_new_tokens=max_new_tokens, **options))
            if context.cancel.is_set():
                return rows
            if number:
                tokens.append(sum(len(step.new_tokens) for step in steps))
                seconds.append(time.perf_counter() - started)
            progress((place + number / len(prompts)) / len(samplings), wording.sampling_label(_row(sampling)))
        speed, spread = decoding_speed(tokens, seconds)
        rows.append(_row(sampling) | {"tokens_per_sec": speed, "timing_spread": spread})
    return rows


def lossless_work(
    subject: Subject, *, temperature: float, top_p: float, verifier: str, samples: int, seed: int = 0, kind: str = ""
) -> Work:
    """Return the work of decoding the subject's first prompt many times and testing what was written.

    `kind` is of trees, as in `Subject.trees`; all but the tree itself are walked by their own verifier.
    """

    def work(context: JobContext) -> Row:
        from sequoia_core import SamplingConfig
        from sequoia_core.design.tree import TokenTree
        from sequoia_core.studies.losslessness import FALSE_ALARM, check_losslessness

        pair, prompts = subject.load(context)
        sampling = SamplingConfig(temperature, top_p)
        tree = subject.trees(kind, sampling)
        assert tree is not None, "hybrid trees are offered where a vector calibrates them"
        rule = verifier if isinstance(tree, TokenTree) else tree.verifiers[0]
        report = check_losslessness(
            prompts[0],
            pair,
            tree=tree,
            sampling=sampling,
            verifier=rule,
            samples=samples,
            new_tokens=COMPARED_TOKENS,
            generator=_generator(seed),
            progress=context.progress,
            cancel=context.cancel,
        )
        texts = [text_after(pair.tokenizer.decode, prompts[0][-1:], cell) for cell in report.cells]
        settings = {
            **subject.settings(),
            "prompt": subject.prompts[0],
            "temperature": temperature,
            "top_p": top_p,
            "verifier": rule,
            "samples_asked": samples,
            "new_tokens": COMPARED_TOKENS,
            "seed": seed,
        }
        if report.difference is not None:
            settings["difference"] = report.difference.words(pair.tokenizer.decode)
        return records.losslessness_record(report, texts, false_alarm=FALSE_ALARM, **settings)

    return work


def assumption_work(subject: Subject, *, temperature: float, top_p: float, seed: int = 0) -> Work:
    """Return the work of predicting from every other prompt what the rest yields, then counting in decoding of all."""

    def work(context: JobContext) -> Row:
        from sequoia_core import SamplingConfig, decode
        from sequoia_core.studies.prediction_check import static_versus_real
        from sequoia_core.studies.step_counts import acceptance_by_confidence, acceptance_by_depth

        pair, prompts = subject.load(context)
        common: dict[str, Any] = {
            "tree": subject.tree,
            "sampling": SamplingConfig(temperature, top_p),
            "max_new_tokens": subject.max_new_tokens,
            "cancel": context.cancel,
        }
        progress = context.part(0.02, 0.65, "Predicting from half of the prompts")
        check = static_versus_real(prompts[::2], prompts[1::2], pair, **common, seed=seed, progress=progress)
        record = records.assumption_record(check, **subject.settings())
        context.keep(record)
        progress, steps = context.part(0.65, 1.0, "Counting by depth and confidence"), []
        for number, prompt in enumerate(prompts):
            steps.extend(decode(prompt, pair, **common, generator=_generator(seed + 1 + number)))
            if context.cancel.is_set():
                break
            progress((number + 1) / len(prompts), f"prompt {number + 1} of {len(prompts)}")
        if not steps:
            return record
        counts = acceptance_by_depth(steps, subject.tree), acceptance_by_confidence(steps, subject.tree)
        return records.assumption_record(check, *counts, **subject.settings(), steps=len(steps))

    return work


def record_now(work: Work) -> Row:
    """Do the work here and now, without a queue."""
    return work(JobContext(Job("record")))


def _generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed)


def _row(sampling: SamplingConfig) -> Row:
    return {"temperature": sampling.temperature, "top_p": sampling.top_p}
