"""A statistical test, on real models, that decoding preserves the target's distribution. V = vocabulary, c = cells."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import TOKENS_ONLY, DecodeStep
from sequoia_core.decoding.sampling import SamplingConfig, check_logits, probabilities
from sequoia_core.decoding.tree_policy import TreePolicy
from sequoia_core.files.faults import Cancelled
from sequoia_core.measuring.first_difference import Difference, first_difference
from sequoia_core.measuring.prompt_loop import Progress, Report, measure_each
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.protocol import LanguageModel, causal_mask, prefill
from sequoia_core.models.threads import use_free_cores
from sequoia_core.trees.tree import TokenTree

FALSE_ALARM_RATE = 1e-6  # upper bound on the probability that a correct verifier fails, as shown to the user
# With 5 expected counts per cell, the chi-square tail may be off by a factor of 2, so the threshold is stricter.
P_VALUE_THRESHOLD = 1e-7
SMALLEST_EXPECTED = 5.0

# Tokens, and whether the cell pools all continuations of these tokens that have no cell of their own.
Cell = tuple[tuple[int, ...], bool]


@dataclass(frozen=True, slots=True, eq=False)
class LosslessnessReport:
    """A G-test of decoded continuations against the target's probabilities.

    Attributes:
        statistic: G = 2 sum observed ln(observed / expected), divided by Williams' correction; infinite if a
            continuation is impossible under the target.
        degrees_of_freedom: number of cells minus 1; at 0, the test fails only if there are impossible continuations.
        p_value: chi-square tail probability of the statistic.
        threshold: smallest p-value at which the test passes.
        impossible: number of continuations with probability 0 under the target.
        cells: c token sequences, in descending order of expected count.
        pooled: bool [c], whether the cell contains all continuations of `cells[i]` that have no cell of their own.
        expected: float64 [c], expected counts; they sum to `samples`.
        observed: int64 [c], observed counts; together with `impossible`, they sum to `samples`.
        difference: at temperature 0, the first difference of an impossible continuation from the target's; None at
            other temperatures or without such a continuation.
    """

    samples: int
    statistic: float
    degrees_of_freedom: int
    p_value: float
    threshold: float
    impossible: int
    cells: tuple[tuple[int, ...], ...]
    pooled: np.ndarray
    expected: np.ndarray
    observed: np.ndarray
    difference: Difference | None = None

    @property
    def passed(self) -> bool:
        return self.p_value >= self.threshold


def check_losslessness(
    prompt_ids: Sequence[int],
    pair: ModelPair,
    *,
    tree: TokenTree | TreePolicy,
    sampling: SamplingConfig | None = None,
    verifier: str = "sequoia",
    samples: int = 1000,
    new_tokens: int = 2,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> LosslessnessReport:
    """Decode one prompt many times and test the first tokens against the target's warped probabilities.

    Expected counts come from plain target passes over the prompt and a prefix, without tree masks. Continuations with
    an expected count below 5 are pooled with others of the same prefix. The two sides agree only up to rounding, so use
    float32: with bfloat16, top-p may select different tokens.

    Args:
        prompt_ids: int [L], at least one token.
        new_tokens: number of tokens compared per continuation; fewer if it ends with EOS.
        generator: generator shared by all runs; None for a new, randomly seeded one.
    """
    for name, count in (("samples", samples), ("new_tokens", new_tokens)):
        if count < 1:
            raise ValueError(f"{name}: found {count}, expected at least 1")
    sampling = sampling or SamplingConfig()
    cancel = cancel or threading.Event()
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    prompt = [int(token) for token in prompt_ids]
    options: dict[str, Any] = {"tree": tree, "sampling": sampling, "verifier": verifier, "generator": generator}
    expected: _ExpectedCells | None = None

    def sample(number: int, report: Report) -> tuple[int, ...] | None:
        nonlocal expected
        steps = list(decode(prompt, pair, max_new_tokens=new_tokens, cancel=cancel, details=TOKENS_ONLY, **options))
        if not _is_complete(steps, prompt, new_tokens):
            return None
        # The cells are created only here, because `decode` has now checked the prompt and the prefill can be cancelled.
        if expected is None:
            expected = _ExpectedCells(prompt, pair.target, sampling, new_tokens)
            if not prefill(expected.session, prompt[:-1], cancel=cancel):
                return None
        report(1.0)
        return tuple(token for step in steps for token in step.new_tokens)

    texts = Counter(measure_each(samples, sample, noun="sample", progress=progress, cancel=cancel))
    if not texts:
        raise Cancelled("samples: cancelled before the first sample was complete")
    assert expected is not None, "set before the first sample is returned"
    expected.split(SMALLEST_EXPECTED / texts.total())
    report = _g_test(expected, texts)
    if sampling.greedy and report.impossible and not report.pooled[0]:
        wrong = next(text for text in texts if expected.find_cell(text) is None)
        return replace(report, difference=first_difference(prompt, report.cells[0], wrong, pair.target))
    return report


def _is_complete(steps: Sequence[DecodeStep], prompt: Sequence[int], new_tokens: int) -> bool:
    """Return whether a continuation was completed; False if decoding was cancelled."""
    if steps and steps[-1].finished == "context":
        raise ValueError(f"prompt: found {len(prompt)} tokens, expected the target's context to fit {new_tokens} more")
    return bool(steps) and steps[-1].finished is not None


class _ExpectedCells:
    """The target's probabilities of the first tokens, split into cells.

    Before `split` is called, the session must contain the prompt without its last token.

    Attributes:
        cells: cell -> probability.
        support: prefix -> whether each token may follow it, bool [V].
        merged: the cell that was merged into the rest, or None.
    """

    def __init__(self, prompt: list[int], target: LanguageModel, sampling: SamplingConfig, new_tokens: int) -> None:
        self.prompt = prompt
        self.target = target
        self.sampling = sampling
        self.new_tokens = new_tokens
        self.cells: dict[Cell, float] = {}
        self.support: dict[tuple[int, ...], np.ndarray] = {}
        self.session = target.open(len(prompt) + new_tokens)
        self.merged: Cell | None = None

    def split(self, smallest: float) -> None:
        """Create cells with a probability of at least `smallest`."""
        rest = self._split((), 1.0, smallest)
        if 0.0 < rest < smallest and self.cells:
            self.merged = min(self.cells, key=self.cells.__getitem__)
            rest += self.cells.pop(self.merged)
        if rest > 0.0:
            self.cells[(), True] = rest

    @torch.inference_mode()
    def _next_token_row(self, prefix: tuple[int, ...]) -> np.ndarray:
        ids = torch.tensor([self.prompt[-1], *prefix])
        positions = torch.arange(len(ids)) + self.session.length
        with use_free_cores():
            logits = self.session.forward(ids, positions, causal_mask(len(ids)), keep=1)
        self.session.commit(len(self.prompt) - 1, [])
        check_logits(logits, "target")
        row = probabilities(logits, self.sampling)[0].double().cpu().numpy()
        return row / row.sum()

    def _split(self, prefix: tuple[int, ...], reach: float, smallest: float) -> float:
        """Create cells for continuations of `prefix`; return the mass left over for the shorter prefix's cell."""
        mass = reach * self._next_token_row(prefix)
        self.support[prefix] = mass > 0.0
        large = mass >= smallest
        rest = float(mass[~large].sum())
        for token in np.flatnonzero(large).tolist():
            longer = (*prefix, token)
            if len(longer) == self.new_tokens or token in self.target.eos_ids:
                self.cells[longer, False] = float(mass[token])
            else:
                rest += self._split(longer, float(mass[token]), smallest)
        if prefix and rest >= smallest:
            self.cells[prefix, True] = rest
            return 0.0
        return rest

    def find_cell(self, text: tuple[int, ...]) -> Cell | None:
        """Return the cell that contains a continuation; None if its probability under the target is 0."""
        for length, token in enumerate(text):
            support = self.support.get(text[:length])
            if support is not None and not support[token]:
                return None
        for cell in ((text, False), *((text[:length], True) for length in reversed(range(len(text))))):
            if cell == self.merged:
                break
            if cell in self.cells:
                return cell
        return (), True


def _g_test(target: _ExpectedCells, texts: Counter[tuple[int, ...]]) -> LosslessnessReport:
    samples = texts.total()
    counts: Counter[Cell | None] = Counter()
    for text, count in texts.items():
        counts[target.find_cell(text)] += count
    cells = sorted(target.cells, key=target.cells.__getitem__, reverse=True)
    shares = np.array([target.cells[cell] for cell in cells])
    assert abs(shares.sum() - 1.0) < 1e-9, "pooling must preserve the target's mass"
    shares /= shares.sum()
    expected = samples * shares
    observed = np.array([counts[cell] for cell in cells], dtype=np.int64)
    impossible = counts[None]
    freedom = len(cells) - 1
    assert observed.sum() + impossible == samples, "every continuation must have a cell"
    statistic = 0.0
    if impossible:
        statistic = np.inf
    elif freedom:
        filled = observed > 0
        raw = 2.0 * (observed[filled] * np.log(observed[filled] / expected[filled])).sum()
        # Williams's correction (1976) adjusts the mean of G, which is too large at small counts, to the chi-square's.
        statistic = max(0.0, float(raw / (1.0 + ((1.0 / shares).sum() - 1.0) / (6.0 * samples * freedom))))
    return LosslessnessReport(
        samples=samples,
        statistic=statistic,
        degrees_of_freedom=freedom,
        p_value=float(chi2.sf(statistic, freedom)) if freedom else float(not impossible),
        threshold=P_VALUE_THRESHOLD,
        impossible=impossible,
        cells=tuple(tokens for tokens, _ in cells),
        pooled=np.array([pooled for _, pooled in cells]),
        expected=expected,
        observed=observed,
    )
