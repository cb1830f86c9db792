"""Acceptance vectors measured on a real pair, on text the target itself would write.

Knows models and acceptance, not trees: it asks at every position what a wide node would have done there, in
expectation over the accept/reject coin (Rao-Blackwell), so few positions say much.
Shapes: N = positions, V = vocabulary, W = ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from .acceptance import AcceptanceVector
from .engine import autoregressive
from .models import LanguageModel
from .sampling import SamplingConfig, probabilities, sample_without_replacement

CHUNK = 128  # positions handled at once: bounds the [positions, vocabulary] rows


def measure_acceptance(
    prompts: Sequence[Sequence[int]],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig | None = None,
    width: int = 32,
    max_new_tokens: int = 128,
    generator: torch.Generator | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: threading.Event | None = None,
) -> AcceptanceVector:
    """Measure how often the child of each rank is the accepted one, over continuations the target writes.

    For each prompt the target continues at `sampling`; both models then read the continuation in one pass each. A
    vector measured on other text would understate tokens per step: the draft is asked about what the target writes.

    Args:
        prompts: token ids, one list per prompt.
        width: ranks W to measure.
        max_new_tokens: positions per prompt.
        progress: told the fraction done and what is going on.
        cancel: looked at between tokens; what is complete by then is returned.

    Returns:
        A vector of W probabilities with per-prompt sums, from which intervals follow.

    Raises:
        ValueError: for no prompts, a width outside the vocabulary, or a cancel before the first prompt was complete.
    """
    sampling = sampling or SamplingConfig()
    cancel = cancel or threading.Event()
    generator = generator or torch.Generator().manual_seed(0)
    if not prompts:
        raise ValueError("prompts: found none, expected at least one")
    if not 1 <= width <= target.vocab_size:
        raise ValueError(f"width: found {width}, expected 1 to {target.vocab_size}")
    sums, counts = [], []
    for number, prompt in enumerate(prompts):
        text: list[int] = []
        for step in autoregressive(
            prompt, target=target, sampling=sampling, max_new_tokens=max_new_tokens, generator=generator, cancel=cancel
        ):
            text.extend(step.new_tokens)
            if progress is not None:
                share = len(text) / max_new_tokens
                progress((number + share) / len(prompts), f"prompt {number + 1} of {len(prompts)}")
        if cancel.is_set():
            break
        accepted = _acceptance_along(prompt, text, target, draft, sampling, width, generator)
        sums.append(accepted.sum(axis=0))
        counts.append(len(accepted))
    if not sums:
        raise ValueError("acceptance: found it cancelled before the first prompt was complete, expected at least one")
    prompt_sums, trials = np.array(sums), np.array(counts)
    return AcceptanceVector(
        probs=prompt_sums.sum(axis=0) / trials.sum(),
        trials=int(trials.sum()),
        prompt_sums=prompt_sums,
        prompt_trials=trials,
        meta={
            "source": "measured on text the target wrote",
            "target": target.name,
            "draft": draft.name,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "prompts": len(sums),
        },
    )


@torch.inference_mode()
def _acceptance_along(
    prompt: Sequence[int],
    text: Sequence[int],
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    width: int,
    generator: torch.Generator,
) -> np.ndarray:
    """Return the acceptance probability of each rank at every position of `text`, float64 [N, W]."""
    parts = []
    draft_sampling = SamplingConfig(temperature=1.0 if sampling.greedy else sampling.temperature)
    for target_logits, draft_logits in zip(
        _logits_along(prompt, text, target), _logits_along(prompt, text, draft), strict=True
    ):
        draft_probs = probabilities(draft_logits, draft_sampling)
        if sampling.greedy:
            choice = target_logits.argmax(-1, keepdim=True)
            children = draft_probs.topk(width, dim=-1).indices
            parts.append((children == choice).double())
        else:
            parts.append(rank_acceptance(probabilities(target_logits, sampling), draft_probs, width, generator))
    return torch.cat(parts).cpu().numpy()


def _logits_along(prompt: Sequence[int], text: Sequence[int], model: LanguageModel) -> Iterable[torch.Tensor]:
    """Yield the logits that predict each token of `text`, a chunk at a time, float [chunk, V]."""
    ids = torch.tensor([*prompt, *text[:-1]], dtype=torch.int64)
    cache = model.new_cache(len(ids))
    starts = [0, *range(len(prompt) - 1, len(ids), CHUNK)] if len(prompt) > 1 else list(range(0, len(ids), CHUNK))
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        size = stop - start
        tail = torch.full((size, size), -torch.inf).triu(1)
        logits = model.forward(ids[start:stop], torch.arange(start, stop), cache=cache, tail=tail, keep=size)
        if start >= len(prompt) - 1:
            yield logits


def rank_acceptance(
    target: torch.Tensor, draft: torch.Tensor, width: int, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return P(child of rank k is the accepted one) along one without-replacement draw per row (paper Algorithm 2).

    Args:
        target, draft: float32 [N, V], rows P and Q.
        width: ranks W.

    Returns:
        float64 [N, W]; a row sums to 1 minus the probability that all W children are rejected.
    """
    children = sample_without_replacement(draft, width, generator)
    left, mass = target.double(), draft.double()
    reached = torch.ones(len(left), 1, dtype=torch.float64, device=left.device)
    columns = []
    for k in range(width):
        token = children[:, k : k + 1]
        wanted, offered = left.gather(1, token), mass.gather(1, token)
        accept = torch.where(offered > 0, (wanted / offered.clamp_min(1e-300)).clamp_max(1.0), (wanted > 0).double())
        columns.append(reached * accept)
        reached = reached * (1.0 - accept)
        rest = (left - mass).clamp_min_(0.0)
        total = rest.sum(1, keepdim=True)
        left = torch.where(total > 0, rest / total.clamp_min(1e-300), left)
        mass = mass.scatter(1, token, 0.0)
        total = mass.sum(1, keepdim=True)
        if not (total > 0).all():  # exhausted rows go on uniformly over the tokens not rejected so far
            open_tokens = torch.ones_like(mass).scatter_(1, children[:, : k + 1], 0.0)
            mass = torch.where(total > 0, mass, open_tokens)
            total = mass.sum(1, keepdim=True).clamp_min(1e-300)
        mass = mass / total
    return torch.cat(columns, 1)


def repeated_share(tokens: Sequence[int], length: int = 4) -> float:
    """Return the share of n-grams that occurred before: near 1 for text that loops (and is easy to draft)."""
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
