"""Statistical evidence that decoding preserves the target's distribution, on real models. V = vocabulary, c = cells."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2

from ..decoding.loop import decode
from ..decoding.record import TOKENS_ONLY
from ..decoding.sampling import SamplingConfig, check_logits, probabilities
from ..decoding.tree_policy import TreePolicy
from ..design.tree import TokenTree
from ..files.faults import Cancelled
from ..models.language_model import ModelPair
from ..models.protocol import LanguageModel, causal_mask, prefill
from ..native.threads import use_free_cores
from .first_difference import Difference, first_difference
from .prompt_loop import Progress, Report, one_by_one

FALSE_ALARM = 1e-6  # largest probability that a correct verifier fails; shown to the user
THRESHOLD = 1e-7  # fails below this p-value: stricter, as the chi-square tail is off by up to about 2 at 5 per cell
SMALLEST_EXPECTED = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class LosslessnessReport:
    """A G-test of what was written against the target's own probabilities.

    Attributes:
        statistic: G = 2 sum observed ln(observed / expected), over Williams' correction; infinite where the target
            cannot have written what was seen.
        degrees_of_freedom: cells minus 1; at 0 only what is impossible can fail.
        p_value: chi-square tail of the statistic.
        threshold: the test passes at p-values from this up; a correct verifier fails with a probability below 1e-6.
        impossible: continuations to which the target gives no probability.
        cells: c token sequences, largest expected count first.
        pooled: bool [c]; true where the cell holds all continuations of `cells[i]` that have no cell of their own.
        expected: float64 [c], counts; they sum to `samples`.
        observed: int64 [c], counts; they and `impossible` sum to `samples`.
        difference: at temperature 0, where an impossible text parts from the target's own.
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
    """Decode one prompt many times and test the first tokens against the target's own warped probabilities.

    Expected counts come from plain forwards of the target over prompt and prefix, without tree masks. Continuations
    expected fewer than 5 times are pooled with others of the same beginning, so that no mass is dropped. Both sides are
    the same up to rounding, so run it in float32: with bfloat16, top-p may keep another token.

    Args:
        prompt_ids: int [L], at least one token.
        new_tokens: tokens compared per continuation, fewer where it meets EOS.
        generator: one source for all runs; None seeds a fresh one.
    """
    sampling, cancel = sampling or SamplingConfig(), cancel or threading.Event()
    prompt = [int(token) for token in prompt_ids]
    for name, count in (("samples", samples), ("new_tokens", new_tokens)):
        if count < 1:
            raise ValueError(f"{name}: found {count}, expected at least 1")
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    expected: _ExpectedCells | None = None
    seen: Counter[tuple[int, ...]] = Counter()

    def sample(number: int, report: Report) -> tuple[int, ...] | None:
        nonlocal expected
        text, finished = [], None
        for step in decode(
            prompt, pair, tree=tree, sampling=sampling, max_new_tokens=new_tokens, verifier=verifier,
            generator=generator, details=TOKENS_ONLY, cancel=cancel,
        ):  # fmt: skip
            text.extend(step.new_tokens)
            finished = step.finished
        if finished == "context":
            raise ValueError(
                f"prompt: found {len(prompt)} tokens, expected room for {new_tokens} more in the target's context"
            )
        if finished is None:  # cancelled on the way
            return None
        if expected is None:  # here a cancel can end it, and `decode` has checked the prompt
            expected = _ExpectedCells(prompt, pair.target, sampling, new_tokens)
            if not prefill(expected.session, prompt[:-1], cancel=cancel):
                return None
        report(1.0)
        return tuple(text)

    for text in one_by_one(samples, sample, noun="sample", progress=progress, cancel=cancel):
        seen[text] += 1
    count = seen.total()
    if not count:
        raise Cancelled("samples: cancelled before the first was complete, expected at least one")
    assert expected is not None, "expected counts are set before the first sample"
    expected.split(SMALLEST_EXPECTED / count)
    report = _g_test(expected, seen)
    if sampling.greedy and report.impossible and not report.pooled[0]:
        odd = next(text for text in seen if expected.cell_of(text) is None)
        return replace(report, difference=first_difference(prompt, report.cells[0], odd, pair.target))
    return report


class _ExpectedCells:
    """The target's probabilities of the first tokens, split into cells.

    Its session must hold all of the prompt except its last token before `split` is called.

    Attributes:
        cells: (tokens, pooled) -> probability.
        support: for every prefix read, which tokens may follow it, bool [V].
        taken_in: the cell that was merged into the rest; None without one.
    """

    def __init__(self, prompt: list[int], target: LanguageModel, sampling: SamplingConfig, new_tokens: int) -> None:
        self.prompt, self.target, self.sampling, self.new_tokens = prompt, target, sampling, new_tokens
        self.cells: dict[tuple[tuple[int, ...], bool], float] = {}
        self.support: dict[tuple[int, ...], np.ndarray] = {}
        self.session = target.open(len(prompt) + new_tokens)
        self.taken_in: tuple[tuple[int, ...], bool] | None = None

    def split(self, smallest: float) -> None:
        """Make cells that hold at least `smallest` probability each."""
        self.smallest = smallest
        rest = self._split((), 1.0)
        if 0.0 < rest < smallest and self.cells:  # below the smallest expected count: merge the smallest cell into it
            self.taken_in = min(self.cells, key=self.cells.__getitem__)
            rest += self.cells.pop(self.taken_in)
        if rest > 0.0:
            self.cells[(), True] = rest

    @torch.inference_mode()
    def _row(self, prefix: tuple[int, ...]) -> np.ndarray:
        ids = torch.tensor([self.prompt[-1], *prefix])
        positions = torch.arange(len(ids)) + self.session.length
        with use_free_cores():
            logits = self.session.forward(ids, positions, causal_mask(len(ids)), keep=1)
        self.session.commit(len(self.prompt) - 1, [])
        check_logits(logits, "target")
        row = probabilities(logits, self.sampling)[0].double().cpu().numpy()
        return row / row.sum()

    def _split(self, prefix: tuple[int, ...], reach: float) -> float:
        """Make cells of the continuations of `prefix`; return the mass left over for the prefix before it."""
        mass = reach * self._row(prefix)
        self.support[prefix] = mass > 0.0
        large = mass >= self.smallest
        rest = float(mass[~large].sum())
        for token in np.flatnonzero(large).tolist():
            longer = (*prefix, token)
            if len(longer) == self.new_tokens or token in self.target.eos_ids:
                self.cells[longer, False] = float(mass[token])
            else:
                rest += self._split(longer, float(mass[token]))
        if prefix and rest >= self.smallest:
            self.cells[prefix, True] = rest
            return 0.0
        return rest

    def cell_of(self, text: tuple[int, ...]) -> tuple[tuple[int, ...], bool] | None:
        """Return the cell that a continuation belongs to, None where the target gives it no probability."""
        for length, token in enumerate(text):
            support = self.support.get(text[:length])
            if support is not None and not support[token]:
                return None
        for cell in ((text, False), *((text[:length], True) for length in reversed(range(len(text))))):
            if cell == self.taken_in:
                break
            if cell in self.cells:
                return cell
        return (), True


def _g_test(target: _ExpectedCells, seen: Counter[tuple[int, ...]]) -> LosslessnessReport:
    samples = seen.total()
    counts: Counter[tuple[tuple[int, ...], bool] | None] = Counter()
    for text, count in seen.items():
        counts[target.cell_of(text)] += count
    cells = sorted(target.cells, key=target.cells.__getitem__, reverse=True)
    shares = np.array([target.cells[cell] for cell in cells])
    assert abs(shares.sum() - 1.0) < 1e-9, "pooling must keep all of the target's mass"
    shares /= shares.sum()
    expected = samples * shares
    observed = np.array([counts[cell] for cell in cells], dtype=np.int64)
    impossible, freedom = counts[None], len(cells) - 1
    assert observed.sum() + impossible == samples, "every continuation must have a cell"
    statistic = 0.0
    if impossible:
        statistic = np.inf
    elif freedom:
        filled = observed > 0
        raw = 2.0 * (observed[filled] * np.log(observed[filled] / expected[filled])).sum()
        # Williams (1976): brings G's mean, too large at small counts, back to the chi-square's
        statistic = max(0.0, float(raw / (1.0 + ((1.0 / shares).sum() - 1.0) / (6.0 * samples * freedom))))
    p_value = float(chi2.sf(statistic, freedom)) if freedom else float(not impossible)
    return LosslessnessReport(
        samples=samples,
        statistic=statistic,
        degrees_of_freedom=freedom,
        p_value=p_value,
        threshold=THRESHOLD,
        impossible=impossible,
        cells=tuple(tokens for tokens, _ in cells),
        pooled=np.array([pooled for _, pooled in cells]),
        expected=expected,
        observed=observed,
    )
