"""What all studies share: the room after each prompt, loops over prompts and methods with progress and cancel."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, TypeVar

from ..files.faults import Cancelled

if TYPE_CHECKING:
    from ..models.language_model import ModelPair

WARM_TOKENS = 16  # first calls allocate, import and pick kernels
T = TypeVar("T")
Asked = TypeVar("Asked")
Progress = Callable[[float, str], None]
Report = Callable[[float], None]


def one_by_one(
    count: int,
    measure: Callable[[int, Report], T | None],
    *,
    done: int = 0,
    noun: str = "prompt",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[T]:
    """Yield the results of `measure` for each prompt, in order, until the last one or a cancel.

    Args:
        measure: called with a prompt's index and a function that takes the fraction of this prompt that is done;
            returns None when it was cancelled before the prompt was complete.
        done: how many of the first prompts an earlier run measured.
        noun: what is counted, for `progress`.
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
    methods: Mapping[str, Callable[[Asked, int, int, Report], T | None]],
    prompts: Sequence[Asked],
    max_new_tokens: int,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[tuple[str, T]]:
    """Yield what each method does with each prompt, as it ends; the method that begins changes from prompt to prompt.

    Each method is warmed up first. A cancelled race ends; its methods have to check `cancel` too.
    """
    names = list(methods)
    order = [
        (turn, names[(turn + offset) % len(names)]) for turn in range(len(prompts)) for offset in range(len(names))
    ]
    tell = progress or (lambda share, words: None)
    tell(0.0, "warming up")
    for method in methods.values():
        method(prompts[0], min(WARM_TOKENS, max_new_tokens), 0, lambda share: None)
    for number, (turn, name) in enumerate(order):
        if cancel is not None and cancel.is_set():
            return
        words = name if len(prompts) == 1 else f"{name}, prompt {turn + 1} of {len(prompts)}"

        def report(share: float, number: int = number, words: str = words) -> None:
            tell((number + share) / len(order), words)

        report(0.0)
        answered = methods[name](prompts[turn], max_new_tokens, turn, report)
        if answered is not None:
            report(1.0)
            yield name, answered


def room_after(prompts: Sequence[Sequence[int]], pair: ModelPair, wanted: int, *, depth: int = 0) -> list[int]:
    """Return how many tokens after each prompt are measured: as many as wanted, or as the shorter context holds.

    A warning says how much that leaves out.

    Args:
        depth: of the trees that are decoded with; none of them is cut.
    """
    shortest = min(pair.models, key=lambda model: model.max_context)
    most = shortest.max_context - depth
    context = f"{shortest.max_context}, the context of {shortest.name}" + (f", less {depth} levels" if depth else "")
    longest = max(map(len, prompts))
    if longest >= most:
        raise ValueError(f"prompt: found {longest} tokens, expected at most {most - 1}: {context}, less one")
    rooms = [min(wanted, most - len(prompt)) for prompt in prompts]
    if left_out := wanted * len(prompts) - sum(rooms):
        short = sum(room < wanted for room in rooms)
        warnings.warn(
            f"found {left_out} of {wanted * len(prompts)} positions, after {short} of {len(prompts)} prompts, beyond "
            f"{context}: they are left out",
            stacklevel=3,
        )
    return rooms


def part_of(progress: Progress | None, low: float, high: float, doing: str = "") -> Progress | None:
    """Return what takes the progress of a part that goes from `low` to `high` of all, its words prefixed."""
    if progress is None:
        return None
    return lambda share, words: progress(low + share * (high - low), doing + words)


def require_a_prompt(complete: Sized, study: str) -> None:
    """Raise Cancelled when no prompt was complete."""
    if not complete:
        raise Cancelled(f"{study}: cancelled before the first prompt was complete, expected at least one")
