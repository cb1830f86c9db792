"""Acceptance vectors measured on a pair, on text of the target or the user's own. W = ranks, m = prompts.

At every position it adds up the probability that each child is accepted, not the result of one random draw
(Rao-Blackwell), so few positions are enough.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..decoding.sampling import SamplingConfig
from ..decoding.verifiers import choose_verifier
from ..design.acceptance import AcceptanceVector
from ..design.acceptance_matrix import AcceptanceMatrix
from ..design.calibration import RANKS, Calibration, Sample
from ..design.conditions import Conditions, measured_as
from ..files.model_names import needed_draft
from ..models.language_model import ModelPair
from ..models.protocol import LanguageModel, dtype_name
from ..native.threads import release_threads
from .prompt_loop import Progress, Report, one_by_one, require_a_prompt, room_after
from .ranks_along_text import calibration_question, outcome_question, prompt_generators, rank_questions, ranks_on_text

TARGET_TEXT = "measured on text the target wrote"
OWN_TEXT = "measured on the user's own text"
DEPTHS = 8  # levels that are measured of a draft head: what it was not trained for falls late
# sums [L, W], outcomes [N, L, 2] and calibration by prompt; L = 1 but for a draft head
Found = tuple[list[np.ndarray], list[np.ndarray], list[Calibration]]


class CannotResume(ValueError):
    """The vector to resume from was measured with other settings; the message names them."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """How a measurement that may be cut is kept and resumed.

    Attributes:
        resume: the vector of an earlier run with the same settings; its prompts are the first of this run's.
        save: called with the vector so far after each prompt.
        prompted: what the meta says of how the prompts were made, as `Prompting.record` returns it.
    """

    resume: AcceptanceVector | None = None
    save: Callable[[AcceptanceVector], None] | None = None
    prompted: Mapping[str, Any] | None = None


@release_threads()
def measure_acceptance(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    sampling: SamplingConfig | None = None,
    width: int = 32,
    max_new_tokens: int | None = 128,
    verifier: str = "sequoia",
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> AcceptanceVector:
    """Measure how often the child of each rank is the accepted one, over continuations that the target writes.

    The target continues each prompt at `sampling`. Both models then read the continuation, 128 positions per pass. A
    vector measured on other text understates tokens per step, because decoding drafts what the target writes.

    Every prompt has its own random stream, from `seed` and its index, so a run that was cut and resumed gives exactly
    the vector of a run that was not.

    Args:
        max_new_tokens: positions per prompt that the target writes; fewer, with a warning, where a context ends. None
            for teacher-forced: the prompts are themselves the text, every token after the first is a position, and
            nothing is generated. Text longer than the models' context is read in pieces of that length.
        verifier: whose draft sampling and rule are measured: "sequoia", "specinfer" or "topk". At temperature 0 all
            compare with the argmax.

    Returns:
        A vector of W probabilities with sums by prompt (for intervals), the rank accepted at every position (for
        `design.replay`) and a calibration (`design.calibration`); of a draft head also `by_depth`, along the same text,
        the head fed its own outputs from each position on. Its meta holds the settings.
    """
    sampling, cancel = sampling or SamplingConfig(), cancel or threading.Event()
    checkpoints, own_text = checkpoints or Checkpoints(), max_new_tokens is None
    _check_request(prompts, pair, width=width, seed=seed, own_text=own_text)
    if max_new_tokens is not None:
        room_after(prompts, pair, max_new_tokens)
    chosen = choose_verifier(verifier, greedy=sampling.greedy)
    check_measured(verifier)
    settings = {
        "source": OWN_TEXT if own_text else TARGET_TEXT, **pair_settings(pair), "verifier": verifier,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "width": width,
        "max_new_tokens": max_new_tokens, "seed": seed, **(checkpoints.prompted or {}),
    }  # fmt: skip
    if not (sampling.plain or sampling.greedy):
        settings["first_cut"] = True
    depths = DEPTHS if pair.draft is not None and pair.draft.reads else 1
    if depths > 1:
        settings["depths"] = depths
    resume, save = checkpoints.resume, checkpoints.save
    measured = ([], [], []) if resume is None else _resumed(resume, settings, prompts)

    def measure(number: int, report: Report) -> tuple[np.ndarray, np.ndarray, Calibration] | None:
        """Return one prompt's sums by rank, outcomes and calibration; None once cancelled."""
        assert pair.draft is not None, "the request was checked"
        _, _, outcome_stream, calibration_stream = prompt_generators(seed, number, pair.draft.device)
        outcomes = outcome_question(chosen, width, teacher_forced=own_text, generator=outcome_stream)
        calibration = calibration_question(min(RANKS, pair.vocab_size), generator=calibration_stream)
        questions = rank_questions({"ranks": chosen.ranks}, width) | {"outcomes": outcomes, "calibration": calibration}
        parts = ranks_on_text(
            prompts[number], pair, sampling=sampling, questions=questions, max_new_tokens=max_new_tokens, seed=seed,
            number=number, cancel=cancel, report=report, depths=depths,
        )  # fmt: skip
        if parts is None:
            return None
        if depths == 1:
            parts = [{name: answer[:, None] for name, answer in part.items()} for part in parts]
        seen = np.concatenate([part["calibration"][depth::depths, depth] for part in parts for depth in range(depths)])
        return (
            sum(part["ranks"].sum(axis=0) for part in parts),
            np.concatenate([part["outcomes"] for part in parts]),
            Calibration.of_samples([Sample(*seen.swapaxes(0, 1))], temperature=sampling.temperature),
        )

    for sums, accepted, calibration in one_by_one(
        len(prompts), measure, done=len(measured[0]), progress=progress, cancel=cancel
    ):
        measured[0].append(sums)
        measured[1].append(accepted)
        measured[2].append(calibration)
        if save is not None:
            save(_vector_so_far(measured, prompts, pair.target, settings))
    require_a_prompt(measured[0], "acceptance")
    return _vector_so_far(measured, prompts, pair.target, settings)


def _vector_so_far(
    measured: Found, prompts: Sequence[Sequence[int]], target: LanguageModel, settings: dict[str, Any]
) -> AcceptanceVector:
    sums, outcomes, calibrations = measured
    done = {
        "prompts": len(sums),
        "prompts_wanted": len(prompts),
        "prompts_hash": prompts_hash(prompts[: len(sums)]),
    }
    if target.offload is not None:
        done["offload"] = target.offload
    names = ("target", "draft", "temperature", "top_p", "verifier", "top_k")
    vector = vector_from_prompts(
        [each[0] for each in sums], [len(each) for each in outcomes], meta=settings | done,
        ranks=[each[:, 0, 0] for each in outcomes], matched=[each[:, 0, 1] for each in outcomes],
        holds_for=Conditions(**{name: settings[name] for name in names}),
        calibration=Calibration.joined(calibrations),
    )  # fmt: skip
    return with_depths(vector, sums, [each[:, :, 0].T for each in outcomes])


def with_depths(vector: AcceptanceVector, sums: Sequence[np.ndarray], ranks: Sequence[np.ndarray]) -> AcceptanceVector:
    """Add the depths of a head, where there are some: of each prompt sums [L, W], and ranks accepted [L, positions]."""
    levels = np.arange(len(sums[0]))
    if len(levels) == 1:
        return vector
    trials = np.array([np.maximum(each.shape[1] - levels, 0) for each in ranks])
    pooled, counts = np.sum(sums, axis=0), np.maximum(trials.sum(axis=0), 1)[:, None]
    by_depth = AcceptanceMatrix(
        pooled / counts, np.broadcast_to(trials.sum(axis=0)[:, None], pooled.shape), prompt_sums=np.array(sums),
        prompt_trials=trials, prompt_ranks=tuple(each.astype(np.int16) for each in ranks),
    )  # fmt: skip
    return replace(vector, by_depth=by_depth)


def is_partial(vector: AcceptanceVector) -> bool:
    """Return whether a measurement was cut before its last prompt, as its meta records it."""
    done, wanted = vector.meta.get("prompts"), vector.meta.get("prompts_wanted")
    return isinstance(done, int) and isinstance(wanted, int) and done < wanted


def pair_settings(pair: ModelPair) -> dict[str, Any]:
    """Return what identifies the models in a result's settings, and the remarks on their files, if there are any."""
    assert pair.draft is not None, "studies of a pair need its draft"
    settings: dict[str, Any] = {"target": pair.target.name, "draft": pair.draft.name, "dtype": dtype_name(pair.target)}
    return settings | ({"remarks": list(pair.remarks)} if pair.remarks else {})


def prompts_hash(prompts: Sequence[Sequence[int]]) -> str:
    """Return a fingerprint of token ids, 16 hex digits."""
    plain = [[int(token) for token in prompt] for prompt in prompts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def vector_from_prompts(
    sums: Sequence[np.ndarray] | np.ndarray,
    counts: Sequence[int] | np.ndarray,
    *,
    meta: Mapping[str, Any],
    holds_for: Conditions | None = None,
    ranks: Sequence[np.ndarray] | None = None,
    matched: Sequence[np.ndarray] | None = None,
    calibration: Calibration | None = None,
) -> AcceptanceVector:
    """Pool per-prompt sums, float64 [m, W], over their positions, int [m], into one vector that keeps the rest."""
    prompt_sums, trials = np.array(sums), np.array(counts)
    return AcceptanceVector(
        probs=prompt_sums.sum(axis=0) / trials.sum(),
        trials=int(trials.sum()),
        prompt_sums=prompt_sums,
        prompt_trials=trials,
        prompt_ranks=None if ranks is None else tuple(ranks),
        prompt_matched=None if matched is None else tuple(matched),
        meta=dict(meta),
        holds_for=holds_for,
        calibration=calibration,
    )


def check_measured(verifier: str) -> None:
    """Refuse a verifier that has no vectors of its own."""
    if (own := measured_as(verifier)) != verifier:
        raise ValueError(f"verifier: found {verifier!r}, expected {own!r}, whose vectors serve it too")


def _check_request(prompts: Sequence[Sequence[int]], pair: ModelPair, *, width: int, seed: int, own_text: bool) -> None:
    target = pair.target
    draft = needed_draft(pair.draft, "measuring acceptance compares two models")
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


def _resumed(resume: AcceptanceVector, settings: dict[str, Any], prompts: Sequence[Sequence[int]]) -> Found:
    """Return what was measured of the first prompts already; refuse other settings."""
    for key, wanted in settings.items():
        if key not in resume.meta or resume.meta[key] != wanted:
            found = repr(resume.meta[key]) if key in resume.meta else "nothing"
            raise CannotResume(f"found {found} for {key}, expected {wanted!r} as this measurement has it")
    sums, calibration, matched = resume.prompt_sums, resume.calibration, resume.prompt_matched
    ranks = resume.prompt_ranks
    if sums is None or resume.prompt_trials is None or ranks is None or matched is None or calibration is None:
        raise CannotResume(
            "found a vector without per-prompt sums, ranks and calibration, expected one that this version measured"
        )
    done = len(resume.prompt_trials)
    if done > len(prompts):
        raise CannotResume(f"found {done} prompts measured, expected at most the {len(prompts)} of this run")
    if resume.meta.get("prompts_hash") != prompts_hash(prompts[:done]):
        raise CannotResume(f"found other prompts, expected this measurement's first {done} in the same order")
    deeper, both = resume.by_depth, [np.stack(pair, 1)[:, None] for pair in zip(ranks, matched, strict=True)]
    if deeper is None or deeper.prompt_sums is None or deeper.prompt_ranks is None:
        return [each[None] for each in sums], both, [calibration]
    outcomes = [
        np.stack([by_depth.T, np.broadcast_to(first[:, :, 1], by_depth.T.shape)], 2)
        for by_depth, first in zip(deeper.prompt_ranks, both, strict=True)
    ]
    return list(deeper.prompt_sums), outcomes, [calibration]
