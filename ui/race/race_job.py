"""A race as a job for the engine's worker: ways to decode one prompt, one after another; no Streamlit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequoia_core.models.prompting import encode_prompt
from ui.jobs.decode_job import LIKELY, told_by
from ui.jobs.jobs import JobContext
from ui.runs.runs import DecodeRequest, Recorder
from ui.token_text import TokenText

if TYPE_CHECKING:
    from sequoia_core.studies.race import MethodResult


@dataclass(slots=True)
class Race:
    """The methods that have finished so far, in the order in which they ran.

    Args:
        names: of all methods, those that have not run yet too.
        results: method -> what it did.
        runs: method -> its record, as `ui.runs.runs` describes it.
        differences: method -> where its text parts from the first one's, at temperature 0, in words.
    """

    names: tuple[str, ...] = ()
    results: dict[str, MethodResult] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)


def race_work(entrants: Mapping[str, DecodeRequest]) -> Callable[[JobContext], Race]:
    """Return the work of a race between decodes of one prompt, sampled alike; the first is the baseline."""

    def work(context: JobContext) -> Race:
        from sequoia_core import SamplingConfig
        from sequoia_core.decoding.record import StepDetails
        from sequoia_core.studies.first_difference import first_difference
        from sequoia_core.studies.race import MethodResult, own_method, take_turns

        common = next(iter(entrants.values()))
        pair = context.pair(common.models)
        prompt = encode_prompt(pair, common.prompt, common.prompting)
        used = told_by(pair, prompt) | common.prompting.record(pair.tokenizer)
        sampling = SamplingConfig(temperature=common.temperature, top_p=common.top_p)
        methods = {
            name: own_method(
                pair, request.tree, sampling, seed=request.seed, verifier=request.verifier,
                details=StepDetails(likely=LIKELY), cancel=context.cancel,
            )
            for name, request in entrants.items()
        }  # fmt: skip
        race = Race(tuple(entrants))
        context.keep(race)
        turns = take_turns(methods, [prompt], common.max_new_tokens, progress=context.progress, cancel=context.cancel)
        for name, found in turns:  # recorded between decodes: nothing else is done while one runs
            run = entrants[name].header() | used
            text = TokenText(pair.tokenizer.decode, prompt)
            recorder = Recorder(run, text)
            for step in found.steps:
                recorder.add(step)
            run["text"] = pair.text(text.whole(found.output), skip_special_tokens=True)
            result = MethodResult()
            result.add(found)
            if race.results:
                first = next(iter(race.results.values()))
                run["baseline"] = {"tokens": sum(first.tokens), "seconds": sum(first.step_sec)}
                if sampling.greedy and (odd := first_difference(prompt, first.outputs[0], found.output, pair.target)):
                    race.differences[name] = odd.words(pair.tokenizer.decode)
            race.results[name], race.runs[name] = result, run
        return race

    return work
