"""A race as a worker job, without Streamlit: the methods decode one prompt, one after another, several times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sequoia_core.models.prompting import encode_prompt
from ui.jobs.decode_job import LIKELY_TOKENS, pair_settings
from ui.jobs.jobs import JobContext
from ui.runs.runs import DecodeRequest, Recorder
from ui.token_text import TokenText

if TYPE_CHECKING:
    from sequoia_core.measuring.race import MethodResult

ROUNDS = 3


@dataclass(slots=True)
class Race:
    """A race's methods and, in running order, the results of those that have finished at least one round.

    Attributes:
        names: all methods, including those that have not run yet; the first is the baseline.
        results: each method's result, with one entry per finished round.
        runs: the run record of each method's first round, in the format of `ui.runs.runs`.
        differences: for each method whose text differs from the first's at temperature 0, where it does.
    """

    names: tuple[str, ...] = ()
    results: dict[str, MethodResult] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)


def race_work(entrants: Mapping[str, DecodeRequest]) -> Callable[[JobContext], Race]:
    """Return the job that races decodes of one prompt with the same sampling; the first is the baseline."""

    def work(context: JobContext) -> Race:
        from sequoia_core import SamplingConfig
        from sequoia_core.decoding.record import StepDetails
        from sequoia_core.measuring.first_difference import first_difference
        from sequoia_core.measuring.race import MethodResult, take_turns, tree_method
        from sequoia_core.models.threads import TimedLoad

        race = Race(tuple(entrants))
        context.store_partial(race)
        common = next(iter(entrants.values()))
        pair = context.pair(common.models)
        prompt = encode_prompt(pair, common.prompt, common.prompting)
        used = pair_settings(pair, prompt) | common.prompting.record(pair.tokenizer)
        sampling = SamplingConfig(temperature=common.temperature, top_p=common.top_p)
        methods = {
            name: tree_method(
                pair,
                request.tree,
                sampling,
                seed=request.seed,
                verifier=request.verifier,
                details=StepDetails(likely=LIKELY_TOKENS),
                cancel=context.cancel,
            )
            for name, request in entrants.items()
        }
        load = TimedLoad()
        options: dict[str, Any] = {"progress": context.progress, "cancel": context.cancel, "rounds": ROUNDS}
        for name, found in take_turns(methods, [prompt], common.max_new_tokens, **options):
            if name in race.results:
                race.results[name].add(found)
                continue
            # Records are built after each decode so that they do not slow it down.
            run = entrants[name].header() | used
            text = TokenText(pair.tokenizer.decode, prompt)
            recorder = Recorder(run, text)
            for step in found.steps:
                recorder.add(step)
            run["text"] = pair.text(text.whole(found.output), skip_special_tokens=True)
            result = MethodResult()
            result.add(found)
            if race.results:
                first = race.results[race.names[0]]
                run["baseline"] = {"tokens": first.tokens[0], "seconds": first.step_sec[0]}
                if sampling.greedy and (odd := first_difference(prompt, first.outputs[0], found.output, pair.target)):
                    race.differences[name] = odd.words(pair.tokenizer.decode)
            race.results[name] = result
            race.runs[name] = run
        other_load = load.record()
        for run in race.runs.values():
            run["load"] = other_load
        return race

    return work
