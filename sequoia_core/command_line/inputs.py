"""The pair and the prompts that a command was given."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..files.model_names import ASSETS, named_source
from ..models.pair_spec import PairSpec
from .output import held_stderr, tell
from .progress import shown_progress

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..design.acceptance import AcceptanceVector
    from ..design.conditions import Conditions
    from ..files.prompt_rows import Prompt
    from ..models.language_model import ModelPair
    from ..models.prompting import Prompting

Acceptance = TypeVar("Acceptance")


def told(acceptance: Acceptance) -> Acceptance:
    """Say on a terminal what was assumed of a file's entries, and return what was read."""
    if note := getattr(acceptance, "note", ""):  # a matrix has none
        tell(note)
    return acceptance


def vector_of(acceptance: Path | None, entries: str | None) -> AcceptanceVector | None:
    """Return the vector of --acceptance, whose entries are what --entries says; None where there is neither."""
    from ..design.acceptance import AcceptanceVector

    if acceptance is None and entries is not None:
        raise ValueError(f"--entries: found {entries[:40]!r} without --acceptance, expected both")
    return None if acceptance is None else told(AcceptanceVector.load(acceptance, entries))


def checked_sampling(temperature: float, top_p: float, verifier: str | None) -> SamplingConfig:
    """Return the way of sampling, and refuse a verifier that does not exist before a model is loaded for it."""
    from ..decoding.sampling import SamplingConfig
    from ..decoding.verifiers import choose_verifier

    sampling = SamplingConfig(temperature, top_p)
    if verifier is not None:
        choose_verifier(verifier, greedy=sampling.greedy)
    return sampling


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers that an option was given."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option}: found {text!r}, expected whole numbers separated by commas") from error


def pair_options(spec: PairSpec) -> list[str]:
    """Return the options that name the models of a pair."""
    given = {"--target": spec.target, "--draft": spec.draft}
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


def options_of(holds_for: Conditions | None) -> tuple[list[str], list[str]]:
    """Return the options of the pair, and of the sampling, that a vector holds for, where they are not the default."""
    from ..design.conditions import SEQUOIA

    if holds_for is None:
        return [], []
    names = holds_for.target, holds_for.draft
    pair = [] if names == PairSpec().names else pair_options(PairSpec(*map(named_source, names)))
    if holds_for.temperature == 0:
        return pair, []
    sampling = ["--temperature", f"{holds_for.temperature:g}"]
    sampling += ["--top-p", f"{holds_for.top_p:g}"] if holds_for.top_p < 1 else []
    return pair, sampling + (["--verifier", holds_for.verifier] if holds_for.verifier != SEQUOIA else [])


def open_pair(spec: PairSpec) -> ModelPair:
    """Load a pair, saying what is read and checked, and on a terminal which default dtype it is in."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    from ..models.default_dtype import default_dtype
    from ..models.loading import load
    from ..models.protocol import TORCH_DTYPES, dtype_name

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # else each retry is a line of its own on stderr
    with held_stderr() as real, shown_progress(as_json=False, to=real, doing="loading the models") as progress:
        pair = load(spec, progress=progress)
    for remark in pair.remarks:
        print(remark, file=sys.stderr)
    if spec.dtype is None:
        chosen = default_dtype(spec.target, gpu=pair.target.device.type != "cpu")
        other = "; --dtype chooses another" if dtype_name(pair.target) in TORCH_DTYPES else ""
        tell(f"Loaded in {dtype_name(pair.target)} ({chosen.reason}){other}.")
    return pair


def given_prompts(prompts: Path | None, count: int | None, column: str | None = None) -> list[Prompt]:
    from ..files.prompt_files import load_prompts

    return load_prompts(prompts or ASSETS / "prompts" / "prompts.jsonl", column, count)


def prompt_texts(prompts: Path | None, count: int | None, column: str | None = None) -> list[str]:
    """Return prompts for a server that is sent text: it has no place for the roles of a chat."""
    from ..files.prompt_rows import shown

    texts = []
    for prompt in given_prompts(prompts, count, column):
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompt {shown(prompt)[:40]!r}: found a chat of {len(prompt.turns)} turns, expected one text: "
                "servers are sent prompts without roles"
            )
        texts.append(prompt)
    return texts


def encoded(
    pair: ModelPair, prompts: Sequence[Prompt], prompting: Prompting, new_tokens: int | None = None
) -> list[list[int]]:
    """Return token ids of each prompt; those that the chat template refuses are left out, unless it takes none.

    Args:
        new_tokens: a prompt that leaves no room for so many is refused; None checks nothing.
    """
    from ..files.prompt_rows import shown
    from ..models.chat import PromptRefused
    from ..models.prompting import encode_prompt

    taken, refused = [], []
    context = pair.max_context if new_tokens is not None else 0
    with held_stderr():
        for prompt in prompts:
            try:
                ids = encode_prompt(pair, prompt, prompting)
            except PromptRefused as error:
                refused.append(error)
                continue
            if new_tokens is not None and not 1 <= len(ids) <= context - new_tokens:
                whose = "target" if context == pair.target.max_context else "draft"
                raise ValueError(
                    f"prompt {shown(prompt)[:40]!r}: found {len(ids)} tokens, expected 1 to {context - new_tokens} "
                    f"(the {whose}'s context of {context} less --max-new-tokens {new_tokens})"
                )
            taken.append(ids)
    if refused and not taken:
        raise refused[0]
    if refused:
        print(f"{len(refused):,} of {len(prompts):,} prompts are left out, the first: {refused[0]}", file=sys.stderr)
    return taken
