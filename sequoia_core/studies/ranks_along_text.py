"""How likely each verifier accepts the child of each rank, at every position of a text by the target or the user.

Knows models and verifiers' acceptance by rank, neither trees nor vectors.
Shapes: N = positions, V = vocabulary, W = ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from ..decoding.loop import autoregressive
from ..decoding.sampling import SamplingConfig, probabilities
from ..decoding.verifiers import Verifier
from ..models.prefill import prefill
from ..models.protocol import LanguageModel, causal_tail
from .prompt_loop import Report

CHUNK = 128  # positions handled at once: bounds the [positions, vocabulary] rows
Ranks = dict[str, np.ndarray]  # each verifier's acceptance probability of each rank, float64 [N, W]


def prompt_generators(
    seed: int, number: int, device: torch.device | str = "cpu"
) -> tuple[torch.Generator, torch.Generator]:
    """Return two independent streams for one prompt: for the text (CPU), and for draws on `device`."""
    text, draws = (int(word) for word in np.random.SeedSequence([seed, number]).generate_state(2, np.uint64))
    return torch.Generator().manual_seed(text), torch.Generator(device).manual_seed(draws)


def ranks_on_target_text(
    prompt: Sequence[int],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    verifiers: Mapping[str, Verifier],
    width: int,
    max_new_tokens: int,
    seed: int,
    number: int,
    cancel: threading.Event,
    report: Report | None = None,
) -> list[Ranks] | None:
    """Let the target continue a prompt, and ask each verifier about every position of what it wrote.

    Args:
        verifiers: by name, asked in this order.
        width: ranks W.
        seed, number: of the study and of the prompt in it; both give this prompt its own random stream.
        report: called with the fraction written after each token.
        cancel: looked at between passes.

    Returns:
        One part; None when it was cancelled.

    Raises:
        ValueError: for a prompt that leaves the draft no room at all.
    """
    text_generator, draws = prompt_generators(seed, number, draft.device)
    text = continuation(
        prompt, target=target, draft=draft, sampling=sampling, max_new_tokens=max_new_tokens,
        generator=text_generator, report=report, cancel=cancel,
    )  # fmt: skip
    found = ranks_along(prompt, text, target, draft, sampling, verifiers, width, draws, cancel=cancel)
    return None if found is None else [found]


def ranks_on_own_text(
    text: Sequence[int],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    verifiers: Mapping[str, Verifier],
    width: int,
    seed: int,
    number: int,
    cancel: threading.Event,
    report: Report,
) -> list[Ranks] | None:
    """Ask each verifier about every position of a given text; arguments as for `ranks_on_target_text`.

    Returns:
        One part for each piece of the text that the models' context holds; None when it was cancelled.
    """
    _, draws = prompt_generators(seed, number, draft.device)
    pieces = _pieces(text, min(target.max_context, draft.max_context))
    parts = []
    for place, (before, after) in enumerate(pieces, start=1):
        found = ranks_along(before, after, target, draft, sampling, verifiers, width, draws, cancel=cancel)
        if found is None:
            return None
        parts.append(found)
        report(place / len(pieces))
    return parts


def _pieces(text: Sequence[int], context: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Cut own text into pieces that fit the context, each as (first token, the tokens after it)."""
    starts = range(0, len(text) - 1, context)  # a last token alone would have nothing to be predicted
    return [(text[start : start + 1], text[start + 1 : start + context]) for start in starts]


def continuation(
    prompt: Sequence[int],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    max_new_tokens: int,
    generator: torch.Generator,
    report: Report | None = None,
    cancel: threading.Event,
) -> list[int]:
    """Return the tokens that the target writes after a prompt.

    The text ends where the draft, which is to read it, has no more room.

    Args:
        report: called with the fraction written after each token.

    Raises:
        ValueError: for a prompt that leaves the draft no room at all.
    """
    room = draft.max_context - len(prompt)
    if room < 1:
        raise ValueError(
            f"prompt: found {len(prompt)} tokens, expected at most {draft.max_context - 1}: the draft's context less 1"
        )
    max_new_tokens = min(max_new_tokens, room)
    text: list[int] = []
    for step in autoregressive(
        prompt, target=target, sampling=sampling, max_new_tokens=max_new_tokens, generator=generator, cancel=cancel
    ):
        text.extend(step.new_tokens)
        if report is not None:
            report(len(text) / max_new_tokens)
    return text


@torch.inference_mode()
def ranks_along(
    prompt: Sequence[int],
    text: Sequence[int],
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    verifiers: Mapping[str, Verifier],
    width: int,
    generator: torch.Generator,
    *,
    cancel: threading.Event,
) -> Ranks | None:
    """Return each verifier's acceptance probability of each rank at every position of `text`: name -> float64 [N, W].

    Args:
        verifiers: by name, asked in this order.
        generator: on the draft's device; its draws fill the ranks.
        cancel: looked at between passes; None is returned when it was set before the last one.
    """
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in verifiers}
    draft_sampling = SamplingConfig(temperature=1.0 if sampling.greedy else sampling.temperature)
    for target_logits, draft_logits in zip(
        _logits_along(prompt, text, target, cancel), _logits_along(prompt, text, draft, cancel), strict=True
    ):
        if target_logits is None or draft_logits is None:
            return None
        target_rows = probabilities(target_logits, sampling).to(draft.device)
        draft_rows = probabilities(draft_logits, draft_sampling)
        for name, verifier in verifiers.items():
            parts[name].append(verifier.ranks(target_rows, draft_rows, width, generator).cpu())
    return {name: torch.cat(chunks).numpy() for name, chunks in parts.items()}


def _logits_along(
    prompt: Sequence[int], text: Sequence[int], model: LanguageModel, cancel: threading.Event
) -> Iterable[torch.Tensor | None]:
    """Yield the logits that predict each token of `text`, one pass per chunk, float [chunk, V]; None once cancelled."""
    ids = torch.tensor([*prompt, *text[:-1]], dtype=torch.int64)
    session = model.open(len(ids))
    first = len(prompt) - 1  # the position whose logits predict the text's first token
    prefill(session, ids[:first], cancel=cancel)
    for start in range(first, len(ids), CHUNK):
        if cancel.is_set():
            yield None
            return
        stop = min(start + CHUNK, len(ids))
        yield session.append(ids[start:stop], torch.arange(start, stop), causal_tail(stop - start), keep=stop - start)
