"""Acceptance vectors measured on a real pair, on text the target itself would write or on the user's own.

Knows models and acceptance, not trees: it asks at every position what a wide node would have done there, in
expectation over the accept/reject coin (Rao-Blackwell), so few positions say much.
Shapes: N = positions, V = vocabulary, W = ranks, m = prompts.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..decoding.loop import autoregressive
from ..decoding.sampling import SamplingConfig, probabilities
from ..decoding.verifiers import Verifier, choose_verifier
from ..design.acceptance import AcceptanceVector
from ..design.conditions import Conditions
from ..models.prefill import prefill
from ..models.protocol import LanguageModel, causal_tail
from .prompt_loop import Progress, Report, one_by_one, require_a_prompt

CHUNK = 128  # positions handled at once: bounds the [positions, vocabulary] rows
TARGET_TEXT = "measured on text the target wrote"
OWN_TEXT = "measured on the user's own text"


class CannotResume(ValueError):
    """The vector to go on from was measured otherwise; the message says what differs."""


def measure_acceptance(
    prompts: Sequence[Sequence[int]],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig | None = None,
    width: int = 32,
    max_new_tokens: int = 128,
    own_text: bool = False,
    verifier: str = "sequoia",
    seed: int = 0,
    resume: AcceptanceVector | None = None,
    checkpoint: Callable[[AcceptanceVector], None] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> AcceptanceVector:
    """Measure how often the child of each rank is the accepted one, over continuations the target writes.

    For each prompt the target continues at `sampling`; both models then read the continuation, 128 positions per pass.
    A vector measured on other text would understate tokens per step: the draft is asked about what the target writes.

    Every prompt has its own random stream, spawned from `seed` and the prompt's place in the list, so a run that was
    cut and resumed gives exactly the vector of one that was not.

    Args:
        prompts: token ids, one list per prompt.
        width: ranks W to measure.
        max_new_tokens: positions per prompt that the target writes.
        own_text: the prompts are themselves the text: every token after the first is a position, nothing is generated.
            Text longer than the models' context is read in pieces of that length.
        verifier: whose fill and rule decide: "sequoia", "specinfer" or "topk"; at temperature 0 all compare with the
            argmax.
        seed: of all randomness, 0 or more.
        resume: what an earlier run of the same settings left; its prompts are the first of `prompts` and are not
            measured again. More prompts than that run had are welcome.
        checkpoint: called with the vector so far after each prompt, to save it.
        progress: called with the fraction done and what is going on.
        cancel: looked at between passes; the prompts complete by then are returned.

    Returns:
        A vector of W probabilities with per-prompt sums, from which intervals follow. Its meta holds the settings, and
        `prompts` done of `prompts_wanted`.

    Raises:
        ValueError: for no prompts, a width outside the vocabulary, own text without a second token, a vector to resume
            from that was measured otherwise (naming what differs).
        Cancelled: before the first prompt was complete.
    """
    sampling = sampling or SamplingConfig()
    cancel = cancel or threading.Event()
    _check_request(prompts, target, draft, width=width, seed=seed, own_text=own_text)
    verifiers = {verifier: choose_verifier(verifier, greedy=sampling.greedy)}
    settings: dict[str, Any] = {
        "source": OWN_TEXT if own_text else TARGET_TEXT,
        **pair_settings(target, draft),
        "verifier": verifier,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "width": width,
        "max_new_tokens": None if own_text else max_new_tokens,
        "seed": seed,
    }
    sums, counts = ([], []) if resume is None else _resumed(resume, settings, prompts)

    def so_far() -> AcceptanceVector:
        done = {
            "prompts": len(sums),
            "prompts_wanted": len(prompts),
            "prompts_hash": prompts_hash(prompts[: len(sums)]),
        }
        holds_for = Conditions(
            target.name, draft.name, sampling.temperature, sampling.top_p, verifier, top_k=sampling.top_k
        )
        return vector_from_prompts(sums, counts, meta=settings | done, holds_for=holds_for)

    def measure(number: int, report: Report) -> tuple[np.ndarray, int] | None:
        text_generator, draws = prompt_generators(seed, number, draft.device)
        if own_text:
            pieces = _pieces(prompts[number], min(target.max_context, draft.max_context))
        else:
            written = continuation(
                prompts[number], target=target, draft=draft, sampling=sampling, max_new_tokens=max_new_tokens,
                generator=text_generator, report=report, cancel=cancel,
            )  # fmt: skip
            pieces = [(prompts[number], written)]
        parts = []
        for place, (before, text) in enumerate(pieces, start=1):
            found = ranks_along(before, text, target, draft, sampling, verifiers, width, draws, cancel=cancel)
            if found is None:
                return None
            parts.append(found[verifier])
            if own_text:
                report(place / len(pieces))
        return sum(part.sum(axis=0) for part in parts), sum(len(part) for part in parts)

    for prompt_sums, positions in one_by_one(len(prompts), measure, done=len(sums), progress=progress, cancel=cancel):
        sums.append(prompt_sums)
        counts.append(positions)
        if checkpoint is not None:
            checkpoint(so_far())
    require_a_prompt(sums, "acceptance")
    return so_far()


def is_partial(vector: AcceptanceVector) -> bool:
    """Say whether a measurement was cut before its last prompt, by what its meta records."""
    done, wanted = vector.meta.get("prompts"), vector.meta.get("prompts_wanted")
    return isinstance(done, int) and isinstance(wanted, int) and done < wanted


def pair_settings(target: LanguageModel, draft: LanguageModel) -> dict[str, str]:
    """Return what identifies the models in a result's settings."""
    return {"target": target.name, "draft": draft.name, "dtype": str(target.dtype).removeprefix("torch.")}


def prompts_hash(prompts: Sequence[Sequence[int]]) -> str:
    """Return a fingerprint of token ids, 16 hex digits."""
    plain = [[int(token) for token in prompt] for prompt in prompts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def prompt_generators(
    seed: int, number: int, device: torch.device | str = "cpu"
) -> tuple[torch.Generator, torch.Generator]:
    """Return two independent streams for one prompt: for the text (CPU), and for draws on `device`."""
    text, draws = (int(word) for word in np.random.SeedSequence([seed, number]).generate_state(2, np.uint64))
    return torch.Generator().manual_seed(text), torch.Generator(device).manual_seed(draws)


def vector_from_prompts(
    sums: Sequence[np.ndarray],
    counts: Sequence[int],
    *,
    meta: Mapping[str, Any],
    holds_for: Conditions | None = None,
) -> AcceptanceVector:
    """Pool per-prompt sums, float64 [m, W], over their positions, int [m], into one vector."""
    prompt_sums, trials = np.array(sums), np.array(counts)
    return AcceptanceVector(
        probs=prompt_sums.sum(axis=0) / trials.sum(),
        trials=int(trials.sum()),
        prompt_sums=prompt_sums,
        prompt_trials=trials,
        meta=dict(meta),
        holds_for=holds_for,
    )


def _check_request(
    prompts: Sequence[Sequence[int]],
    target: LanguageModel,
    draft: LanguageModel,
    *,
    width: int,
    seed: int,
    own_text: bool,
) -> None:
    if not prompts:
        raise ValueError("prompts: found none, expected at least one")
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"draft: found a vocabulary of {draft.vocab_size}, expected {target.vocab_size} as the target has"
        )
    if not 1 <= width <= target.vocab_size:
        raise ValueError(f"width: found {width}, expected 1 to {target.vocab_size}")
    if seed < 0:
        raise ValueError(f"seed: found {seed}, expected 0 or more")
    if own_text:
        for number, prompt in enumerate(prompts, start=1):
            if len(prompt) < 2:
                raise ValueError(
                    f"text {number}: found {len(prompt)} tokens, expected at least 2: the first has nothing before it"
                )
            outside = next((int(token) for token in prompt if not 0 <= token < target.vocab_size), None)
            if outside is not None:
                raise ValueError(
                    f"text {number}: found token {outside}, expected ids from 0 to {target.vocab_size - 1}"
                )


def _resumed(
    resume: AcceptanceVector, settings: dict[str, Any], prompts: Sequence[Sequence[int]]
) -> tuple[list[np.ndarray], list[int]]:
    """Return the sums and positions of the prompts already measured, or raise ValueError naming what differs."""
    for key, wanted in settings.items():
        if key not in resume.meta or resume.meta[key] != wanted:
            found = repr(resume.meta[key]) if key in resume.meta else "nothing"
            raise CannotResume(f"found {found} for {key}, expected {wanted!r} as this measurement has it")
    if resume.prompt_sums is None or resume.prompt_trials is None:
        raise CannotResume("found a vector without per-prompt sums, expected one that a measurement wrote")
    done = len(resume.prompt_trials)
    if done > len(prompts):
        raise CannotResume(f"found {done} prompts measured, expected at most the {len(prompts)} of this run")
    if resume.meta.get("prompts_hash") != prompts_hash(prompts[:done]):
        raise CannotResume(f"found other prompts, expected this measurement's first {done} in the same order")
    return list(resume.prompt_sums), resume.prompt_trials.tolist()


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
) -> dict[str, np.ndarray] | None:
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


def repeated_share(tokens: Sequence[int], length: int = 4) -> float:
    """Return the share of n-grams that occurred before: near 1 for text that loops (and is easy to draft)."""
    grams = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
