"""A race as a job for the engine's worker: ways to decode one prompt, each alone on the device, one after another.

Runs on the worker's thread, so no Streamlit here; each lane leaves a run as `ui.runs` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequoia_core.models.chat import encode_prompt
from ui.jobs import JobContext
from ui.runs import DecodeRequest, Recorder
from ui.token_text import TokenText

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

WARM_TOKENS = 8  # first calls allocate and pick kernels


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of decoding, when it has finished.

    Args:
        tokens: ids of the text.
        run: its record, as `ui.runs` describes it.
    """

    name: str
    tokens: tuple[int, ...]
    run: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Seconds in steps; prompt reading is left out."""
        return sum(sum(step["seconds"]) for step in self.run["steps"])

    @property
    def tokens_per_sec(self) -> float:
        return len(self.tokens) / self.seconds


@dataclass(slots=True)
class Race:
    """The lanes that have finished so far, in the order in which they ran."""

    lanes: list[Lane] = field(default_factory=list)

    @property
    def by_finish(self) -> list[Lane]:
        """The lanes, the fastest first."""
        return sorted(self.lanes, key=lambda lane: lane.seconds)

    @property
    def is_one_text(self) -> bool:
        """Whether all lanes wrote the same tokens."""
        return len({lane.tokens for lane in self.lanes}) <= 1


def race_work(entrants: Mapping[str, DecodeRequest]) -> Callable[[JobContext], Race]:
    """Return the work of a race.

    Args:
        entrants: name of each lane -> its decode; all of one pair. The baseline of the others is the lane whose tree is
            a root alone, which comes first.
    """

    def work(context: JobContext) -> Race:
        pair = context.pair(next(iter(entrants.values())).models)
        race = Race()
        context.keep(race)
        for place, (name, request) in enumerate(entrants.items()):
            progress = context.part(place / len(entrants), (place + 1) / len(entrants), name)
            lane = _run_lane(context, pair, name, request, progress)
            if lane is None:
                break
            if race.lanes:
                first = race.lanes[0]
                lane.run["baseline"] = {"tokens": len(first.tokens), "seconds": first.seconds}
            race.lanes.append(lane)
        return race

    return work


def _run_lane(
    context: JobContext, pair: ModelPair, name: str, request: DecodeRequest, progress: Callable[[float, str], None]
) -> Lane | None:
    """Decode with one lane's tree -> the lane; None when it was cancelled before its end.

    End of text is switched off: all write equally much.
    """
    import torch

    from sequoia_core import SamplingConfig, decode
    from sequoia_core.models.protocol import dtype_name

    prompt = encode_prompt(pair.tokenizer, request.prompt)
    options = {
        "target": pair.target.endless(), "draft": pair.draft.endless(), "tree": request.tree,
        "sampling": SamplingConfig(temperature=request.temperature, top_p=request.top_p),
        "verifier": request.verifier, "cancel": context.cancel,
    }  # fmt: skip

    def steps(length: int):
        generator = torch.Generator().manual_seed(request.seed)
        return decode(prompt, **options, max_new_tokens=length, generator=generator)

    progress(0.0, "warming up")
    for _ in steps(min(WARM_TOKENS, request.max_new_tokens)):
        pass
    used = {"device": str(pair.target.device), "dtype": dtype_name(pair.target), "prompt_tokens": len(prompt)}
    run = request.header() | used | {"target": pair.target.name, "draft": pair.draft.name}
    taken, written = [], 0
    for step in steps(request.max_new_tokens):  # recorded afterwards: nothing else is done while a lane runs
        taken.append(step)
        written += len(step.new_tokens)
        progress(written / request.max_new_tokens, "decoding")
    if not taken or taken[-1].finished is None:
        return None
    recorder = Recorder(run, TokenText(pair.tokenizer.decode, prompt))
    for step in taken:
        recorder.add(step)
    tokens = tuple(token for step in taken for token in step.new_tokens)
    run["text"] = pair.tokenizer.decode(list(tokens), skip_special_tokens=True)
    progress(1.0, "finished")
    return Lane(name, tokens, run)
