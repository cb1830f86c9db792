"""Read the inputs of commands: pairs, prompts, vectors and numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..files.extras import provided
from ..files.model_names import ASSETS, source_from_name
from ..models.pair_spec import PairSpec
from .output import buffered_stderr, print_note
from .progress import show_progress

if TYPE_CHECKING:
    from ..acceptance.conditions import Conditions
    from ..acceptance.vector import AcceptanceVector
    from ..decoding.sampling import SamplingConfig
    from ..files.prompt_rows import Prompt
    from ..models.language_model import ModelPair
    from ..models.prompting import Prompting

Acceptance = TypeVar("Acceptance")


def with_note(acceptance: Acceptance) -> Acceptance:
    """Print the note about an acceptance file's assumed layout, if any, and return the acceptance."""
    if note := getattr(acceptance, "note", ""):  # An acceptance matrix has no note.
        print_note(note)
    return acceptance


def require_extra(seam: str, option: str, package: str) -> Any:
    """Return the object that an optional package provides at a seam; raise ValueError if it is not installed."""
    parts = provided(seam)
    if not parts:
        raise ValueError(f"{option}: the optional package {package} is not installed")
    return parts[0]


def load_vector(acceptance: Path | None, entries: str | None) -> AcceptanceVector | None:
    """Load the vector given by --acceptance, using the layout given by --entries; None if neither is given."""
    from ..acceptance.vector import AcceptanceVector

    if acceptance is None and entries is not None:
        raise ValueError(f"--entries: found {entries[:40]!r} without --acceptance, expected both")
    return None if acceptance is None else with_note(AcceptanceVector.load(acceptance, entries))


def make_sampling(temperature: float, top_p: float, verifier: str | None) -> SamplingConfig:
    """Return the sampling settings; raise ValueError for an unknown verifier before any model is loaded."""
    from ..decoding.sampling import SamplingConfig
    from ..decoding.verifiers import choose_verifier

    sampling = SamplingConfig(temperature, top_p)
    if verifier is not None:
        choose_verifier(verifier, greedy=sampling.greedy)
    return sampling


def parse_integers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option}: found {text!r}, expected whole numbers separated by commas") from error


def pair_options(spec: PairSpec) -> list[str]:
    """Return the command-line options that select the models of a pair."""
    given = {"--target": spec.target, "--draft": spec.draft}
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


def vector_options(holds_for: Conditions | None) -> tuple[list[str], list[str]]:
    """Return the options for a vector's pair and for its sampling settings, omitting default values."""
    from ..acceptance.conditions import SEQUOIA

    if holds_for is None:
        return [], []
    names = (holds_for.target, holds_for.draft)
    pair = [] if names == PairSpec().names else pair_options(PairSpec(*map(source_from_name, names)))
    sampling: list[str] = []
    if holds_for.temperature != 0:
        sampling += ["--temperature", f"{holds_for.temperature:g}"]
        if holds_for.top_p < 1:
            sampling += ["--top-p", f"{holds_for.top_p:g}"]
        if holds_for.verifier != SEQUOIA:
            sampling += ["--verifier", holds_for.verifier]
    return pair, sampling


def open_pair(spec: PairSpec) -> ModelPair:
    """Load a pair, showing progress, then print its remarks and, if it was chosen by default, the dtype."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    from ..models.default_dtype import default_dtype
    from ..models.loading import load
    from ..models.protocol import TORCH_DTYPES, dtype_name

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # Suppress the line printed for each retry.
    with buffered_stderr() as real, show_progress(as_json=False, to=real, doing="loading the models") as progress:
        pair = load(spec, progress=progress)
    for remark in pair.remarks:
        print(remark, file=sys.stderr)
    if spec.dtype is None:
        chosen = default_dtype(spec.target, gpu=pair.target.device.type != "cpu")
        other = "; use --dtype to change it" if dtype_name(pair.target) in TORCH_DTYPES else ""
        print_note(f"Loaded in {dtype_name(pair.target)} ({chosen.reason}){other}.")
    return pair


def read_prompts(prompts: Path | None, count: int | None, column: str | None = None) -> list[Prompt]:
    """Read prompts from a file; None reads the shipped prompts."""
    from ..files.prompt_files import load_prompts

    return load_prompts(prompts or ASSETS / "prompts" / "prompts.jsonl", column, count)


def prompt_texts(prompts: Path | None, count: int | None, column: str | None = None) -> list[str]:
    """Read prompts to send to a server as plain text; raise ValueError for chats, because roles are not sent."""
    from ..files.prompt_rows import display_prompt

    texts = []
    for prompt in read_prompts(prompts, count, column):
        if not isinstance(prompt, str):
            raise ValueError(
                f"prompt {display_prompt(prompt)[:40]!r}: found a chat with {len(prompt.turns)} turns, expected "
                "a single text: prompts are sent to servers without roles"
            )
        texts.append(prompt)
    return texts


def encode_prompts(
    pair: ModelPair, prompts: Sequence[Prompt], prompting: Prompting, new_tokens: int | None = None
) -> list[list[int]]:
    """Return the token ids of each prompt; skip prompts that the chat template rejects unless it rejects all.

    Args:
        new_tokens: number of new tokens that must fit into the context after each prompt; None skips this check.
    """
    from ..files.prompt_rows import display_prompt
    from ..models.chat import PromptRefused
    from ..models.prompting import encode_prompt

    encoded: list[list[int]] = []
    refused: list[PromptRefused] = []
    with buffered_stderr():
        for prompt in prompts:
            try:
                ids = encode_prompt(pair, prompt, prompting)
            except PromptRefused as error:
                refused.append(error)
                continue
            if new_tokens is not None and not 1 <= len(ids) <= pair.max_context - new_tokens:
                context = pair.max_context
                whose = "target" if context == pair.target.max_context else "draft"
                raise ValueError(
                    f"prompt {display_prompt(prompt)[:40]!r}: found {len(ids)} tokens, expected 1 to "
                    f"{context - new_tokens} (the {whose}'s context of {context} minus --max-new-tokens {new_tokens})"
                )
            encoded.append(ids)
    if refused and not encoded:
        raise refused[0]
    if refused:
        print(f"{len(refused):,} of {len(prompts):,} prompts were skipped; the first is {refused[0]}", file=sys.stderr)
    return encoded
