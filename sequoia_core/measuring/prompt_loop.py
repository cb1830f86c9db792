"""Loop over prompts and methods with progress and cancellation, and limit new tokens to the models' contexts."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, TypeVar

from ..files.faults import Cancelled

if TYPE_CHECKING:
    from ..models.language_model import ModelPair

WARM_UP_TOKENS = 16  # tokens per warm-up run; the first calls allocate memory, import modules and select kernels
Result = TypeVar("Result")
Item = TypeVar("Item")
Progress = Callable[[float, str], None]
Report = Callable[[float], None]


def measure_each(
    count: int,
    measure: Callable[[int, Report], Result | None],
    *,
    done: int = 0,
    noun: str = "prompt",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Result]:
    """Yield the result of `measure` for each prompt in order, stopping early if cancelled.

    Args:
        measure: function of a prompt's index and a callback for the completed fraction of the prompt; it returns None
            if cancelled before the prompt was complete.
        done: number of leading prompts to skip because an earlier run measured them.
        noun: noun for an item in progress messages.
    """
    for number in range(done, count):
        if cancel is not None and cancel.is_set():
            return

        def report(share: float, number: int = number) -> None:
            if progress is not None:
                progress((number + share) / count, f"{noun} {number + 1} of {count}")

        result = measure(number, report)
        if result is None:
            return
        yield result


def take_turns(
    methods: Mapping[str, Callable[[Item, int, int, Report], Result | None]],
    prompts: Sequence[Item],
    max_new_tokens: int,
    *,
    rounds: int = 1,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield (method name, result) for every prompt and method; the methods take turns at going first.

    Each method is warmed up first. Once `cancel` is set, no further calls are made; methods must check `cancel` too.

    Args:
        rounds: number of times that every method decodes all prompts. Within a round, the methods alternate, so that a
            temporary load on the machine affects all of them.
    """
    names = list(methods)
    turns = range(rounds * len(prompts))
    order = [(turn, names[(turn + offset) % len(names)]) for turn in turns for offset in range(len(names))]
    report_progress = progress or (lambda share, message: None)
    report_progress(0.0, "warming up")
    for method in methods.values():
        method(prompts[0], min(WARM_UP_TOKENS, max_new_tokens), 0, lambda share: None)
    for number, (turn, name) in enumerate(order):
        if cancel is not None and cancel.is_set():
            return
        repeat, prompt = divmod(turn, len(prompts))
        counted = (("round", repeat, rounds), ("prompt", prompt, len(prompts)))
        message = name + "".join(f", {noun} {at + 1} of {total}" for noun, at, total in counted if total > 1)

        def report(share: float, number: int = number, message: str = message) -> None:
            report_progress((number + share) / len(order), message)

        report(0.0)
        result = methods[name](prompts[prompt], max_new_tokens, prompt, report)
        if result is not None:
            report(1.0)
            yield name, result


def tokens_within_context(
    prompts: Sequence[Sequence[int]], pair: ModelPair, wanted: int, *, depth: int = 0
) -> list[int]:
    """Return the number of tokens to generate for each prompt: `wanted`, or, with a warning, as many as fit.

    Args:
        depth: number of context positions to reserve for tree levels.
    """
    shortest = min(pair.models, key=lambda model: model.max_context)
    most = shortest.max_context - depth
    context = f"the {shortest.max_context}-token context of {shortest.name}" + (
        f", minus {depth} tree levels" if depth else ""
    )
    longest = max(map(len, prompts))
    if longest >= most:
        raise ValueError(f"prompt: found {longest} tokens, expected at most {most - 1}: {context}, minus 1")
    lengths = [min(wanted, most - len(prompt)) for prompt in prompts]
    if left_out := wanted * len(prompts) - sum(lengths):
        short = sum(length < wanted for length in lengths)
        warnings.warn(
            f"left out {left_out} of {wanted * len(prompts)} positions, after {short} of {len(prompts)} prompts, "
            f"because they exceed {context}",
            stacklevel=3,
        )
    return lengths


def progress_slice(progress: Progress | None, low: float, high: float, doing: str = "") -> Progress | None:
    """Return a progress callback for the part of the work from fraction `low` to `high`; `doing` prefixes messages."""
    if progress is None:
        return None
    return lambda share, message: progress(low + share * (high - low), doing + message)


def require_results(complete: Sized, study: str) -> None:
    """Raise `Cancelled` if no prompt was complete."""
    if not complete:
        raise Cancelled(f"{study}: cancelled before the first prompt was complete")
