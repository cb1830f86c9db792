"""Reports, as sentences and tables, for the commands that run models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.extras import has
from ..files.model_names import NO_DRAFT
from ..models.device import describe_gpu
from ..models.other_load import load_sentence
from .formatting import (
    format_duration,
    format_duration_range,
    format_interval,
    format_number,
    format_percent,
    next_command,
    plural,
    table,
)
from .output import Verbatim

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..acceptance.bootstrap import Estimate
    from ..acceptance.vector import AcceptanceVector
    from ..planning.break_even import GuessedChain
    from ..planning.profile import HardwareProfile

    Parts = Iterator[RenderableType]

BAR_CHARS = 24  # length of the longest bar in characters
METHODS = {
    "autoregressive": "no draft",
    "chain": "best chain",
    "sequoia": "planned tree",
    "specinfer": "SpecInfer 5 × 8",
    "specexec": "SpecExec",
    "adaptive": "adaptive trees",
    "hf_generate": "HF generate",
    "hf_assisted": "HF assisted",
}


def measure_report(
    vector: AcceptanceVector, result: Mapping[str, Any], *, within: float, models: Sequence[str], out: Path | None
) -> Parts:
    """Report an acceptance vector.

    Args:
        within: half-width that the intervals would have after the suggested number of additional prompts.
        models: command-line options that select the pair.
    """
    yield table(("rank", "accepted", "95 % interval"), _rank_rows(vector), words=2)
    yield (
        f"The target accepts the draft's first choice {format_percent(vector.probs[0])} of the time, and one of its "
        f"{plural(len(vector), 'choice')} {format_percent(1 - vector.reject)} of the time: {vector.trials:,} positions "
        f"in {plural(result['prompts'], 'prompt')}, {result['source']}."
    )
    yield from _by_depth(vector)
    if result.get("wiring"):
        yield result["wiring"]
    more = result["more_prompts"]
    if vector.has_one_prompt:
        yield "A single prompt gives no interval: measure two or more (--prompt-count, --prompts)."
    elif more is not None:
        wanted = f"About {more:,} more prompts like these would narrow" if more else "These prompts narrow"
        yield f"{wanted} every rank's interval to ±{100 * within:g} percentage point."
    if result["resumed_prompts"]:
        yield f"{plural(result['resumed_prompts'], 'prompt')} had already been measured in the earlier run."
    if out is None:
        yield "Nothing was saved: use --out vector.json to save the vector after each prompt."
    yield next_command("profile", *models, "--out", "profile.json")


def _rank_rows(vector: AcceptanceVector) -> list[tuple[str, str, str]]:
    """Return rows with rank, bar and interval; consecutive ranks that were never accepted share a row."""
    interval = vector.interval()
    longest = max(float(vector.probs.max()), 1e-9)
    rows = []
    for accepted, ranks in groupby(range(len(vector)), key=lambda index: vector.probs[index] > 0):
        run = list(ranks)
        if not accepted and len(run) > 1:
            most = "" if interval is None else f", at most {format_percent(interval[1][run].max())}"
            rows.append((f"{run[0] + 1} to {run[-1] + 1}", "", f"0 %{most}"))
            continue
        for index in run:
            prob = float(vector.probs[index])
            low, high = (None, None) if interval is None else (100 * bound[index] for bound in interval)
            bar = "█" * round(BAR_CHARS * prob / longest) or ("▏" if prob > 0 else "")
            rows.append((str(index + 1), bar, format_interval(100 * prob, low, high, " %")))
    return rows


def _by_depth(vector: AcceptanceVector) -> Parts:
    """Report a draft head's acceptance at each depth."""
    if vector.by_depth is None:
        return
    from ..planning.prediction import tokens_per_step
    from ..trees.plain import chain_tree

    bounds = vector.by_depth.interval()
    rows = []
    before = 1.0
    for depth, row in enumerate(vector.by_depth.probs, start=1):
        low, high = (None, None) if bounds is None else (100 * float(part[depth - 1, 0]) for part in bounds)
        tokens = tokens_per_step(chain_tree(depth), vector)
        first = format_interval(100 * float(row[0]), low, high, " %")
        rows.append((str(depth), first, format_percent(row.sum()), f"+{tokens - before:.2f}"))
        before = tokens
    yield table(("depth", "first choice, 95 % interval", "any choice", "tokens added to a chain"), rows)
    yield "Below the first depth, a head predicts without the target's states; plans use the acceptance at each depth."


def profile_report(
    profile: HardwareProfile, idle: tuple[int, float], out: Path | None, guessed: GuessedChain | None = None
) -> Parts:
    """Report a profile.

    Args:
        idle: number of tokens up to which a pass takes at most 10 % longer than a one-token pass, and the mean cost of
            each additional token; see `idle_arithmetic`.
    """
    has_draft = profile.meta.get("draft") != NO_DRAFT
    how = "modelled" if profile.modelled else "measured"
    models = f"{profile.meta.get('target', 'a target')} ← {profile.meta.get('draft', 'a draft')}"
    gpu = describe_gpu(profile.meta.get("gpu"))
    yield f"{models} in {profile.dtype}, {how}: {profile.device}" + (f", {gpu}" if gpu else "")
    yield _pass_table(profile)
    ratio = ""
    if has_draft:
        widths = profile.draft_widths.tolist() or [1]
        rows = [
            (str(w), format_duration(float(profile.draft_at(w))), format_number(float(profile.draft_cost(w))))
            for w in widths
        ]
        yield table(("tokens", "draft pass", "c"), rows, words=0)
        ratio = "; c is the time of a draft pass, in the same units"
    yield (
        f"t(n) is the time of a target pass over n tokens, in units of a one-token pass{ratio}. "
        f"The cache contained {profile.context} tokens."
    )
    if has_draft and profile.deeper_draft_share < 1:
        yield f"Draft passes after the first of a step take {profile.deeper_draft_share:.0%} of these times."
    tokens, further = idle
    beyond = (
        f"; each further token costs {further:.2f} one-token passes" if further else " (n is the largest size timed)"
    )
    yield f"Up to n = {tokens}, a target pass takes at most 10 % longer than a one-token pass{beyond}."
    if guessed is not None:
        yield _describe_guess(guessed)
    if (disturbed := load_sentence(profile.meta.get("load"))) is not None:
        yield disturbed
    if out is None:
        yield "Nothing was saved: use --out profile.json to save the profile."
    if has_draft:
        yield next_command("plan", "--acceptance", "vector.json", "--profile", out or "profile.json")
    elif has("dynamic_trees"):
        yield next_command("lookup", "--responses", "answers.jsonl", "--profile", out or "profile.json")


def _pass_table(profile: HardwareProfile) -> Any:
    columns = ["n", "target pass", "t(n)"]
    quartiles = profile.quartiles
    rows = []
    for index, n in enumerate(profile.sizes.tolist()):
        row = [str(n), format_duration(profile.verify_sec[index]), f"{float(profile.t(n)):.2f}"]
        if quartiles is not None:
            row.insert(2, format_duration_range(*(float(quartile[index]) for quartile in quartiles)))
        rows.append(row)
    if quartiles is not None:
        columns.insert(2, "interquartile range")
    return table(columns, rows, words=0)


def _describe_guess(guessed: GuessedChain) -> str:
    verdict = "speeds up decoding" if guessed.speedup > 1 else "does not speed up decoding"
    even = "No acceptance rate would break even."
    if guessed.breaks_even is not None:
        even = f"The break-even point is {format_percent(guessed.breaks_even)}."
    return (
        f"A draft that is right {format_percent(guessed.guess)} of the time {verdict}: the best chain, with "
        f"{plural(guessed.length, 'draft token')}, gives {format_number(guessed.speedup)}× the speed. {even}"
    )


FINISH_REASONS = {"eos": "end of text", "length": "stopped at --max-new-tokens", "context": "the context is full"}


def generate_report(result: Mapping[str, Any], models: Sequence[str], tokenizer: Sequence[str] = ()) -> Parts:
    tokens, tree = len(result["tokens"]), result["tree"]
    yield Verbatim(result["text"])
    yield ""
    rate = f"{tokens / result['seconds']:.1f} tokens/s, including the prompt"
    yield (
        f"{plural(tokens, 'token')} in {plural(result['steps'], 'step')}, {result['tokens_per_step']:.2f} per step; "
        f"{format_duration(result['seconds'])} ({rate}), {result['dtype']}; {FINISH_REASONS[result['finished']]}."
    )
    yield f"Trees with at most {plural(tree['size'], 'node')} and depth {tree['depth']}: {tree['source']}."
    if "none" not in models:
        yield "Compare with decoding without a draft:"
        yield next_command("bench", *models)
    elif has("dynamic_trees"):
        yield "Evaluate such trees on recorded answers:"
        yield next_command("lookup", "--responses", "answers.jsonl", *tokenizer)


def bench_report(record: Mapping[str, Any], over_plain: Mapping[str, Estimate], models: Sequence[str]) -> Parts:
    settings = record["settings"]
    yield table(("method", "tokens/s", "× no draft", "predicted", "tokens/step"), _method_rows(record, over_plain))
    yield (
        f"{plural(settings['prompts'], 'prompt')}, {settings['max_new_tokens']} tokens each, temperature "
        f"{settings['temperature']:g}, {settings['dtype']}, {settings['device']}. Acceptance was measured on "
        f"{plural(settings['calibration_prompts'], 'other prompt')}."
    )
    if settings["prompts"] < 2:
        yield "A single prompt gives no interval: race two or more (--prompt-count, --prompts)."
    star = (
        "* Fastest, counting only the time spent in decoding steps"
        if record["fastest"]
        else "No method is fastest by more than the noise"
    )
    hf = " HF is transformers' own generation, timed as a whole." if "hf_generate" in over_plain else ""
    yield f"{star}; tokens/s include reading the prompt.{hf}"
    yield from _bench_notes(record)
    if (disturbed := load_sentence(record["load"])) is not None:
        yield disturbed
    yield "To save measurements for reuse, run measure and profile:"
    yield next_command("measure", *models, "--temperature", f"{settings['temperature']:g}", "--out", "vector.json")


def _method_rows(record: Mapping[str, Any], over_plain: Mapping[str, Estimate]) -> list[tuple[str, ...]]:
    """Return a row for each method that differs from decoding without a draft, fastest first."""
    rows: list[tuple[str, ...]] = []
    ranked = sorted(set(over_plain) - set(record["same_as_plain"]), key=lambda name: -over_plain[name].value)
    for name in ranked:
        row = record[name]
        predicted = ""
        if "predicted_speedup" in row:
            low, high = row["predicted_interval"]
            predicted = format_interval(row["predicted_speedup"], low, high, "×")
        speed = "1" if name == "autoregressive" else format_interval(*over_plain[name], "×")
        method = METHODS.get(name, name) + (" *" if name == record["fastest"] else "")
        tokens_per_sec, tokens_per_step = (format_number(row[key]) for key in ("tokens_per_sec", "tokens_per_step"))
        rows.append((method, tokens_per_sec, speed, predicted, tokens_per_step))
    return rows


def _bench_notes(record: Mapping[str, Any]) -> Parts:
    tree = record["tree"]
    if tree["size"] == 1:
        yield "The plan is to decode without a draft: no tree is predicted to be faster for this pair on this machine."
    else:
        yield f"The planned tree has {plural(tree['size'], 'node')} and depth {tree['depth']}."
    yield f"The best chain drafts {plural(record['chain_length'], 'token')}."
    if others := [METHODS[name] for name in record["same_as_plain"] if name != "sequoia"]:
        yield f"Identical to decoding without a draft: {', '.join(others)}."
    for name, why in record["lanes_left_out"].items():
        yield f"{METHODS.get(name, name)} was left out: {why}."
    if record["settings_left_out"]:
        ignored = ", ".join(f"{name} {value}" for name, value in record["settings_left_out"].items())
        yield f"Generation settings that ship with the target were ignored: {ignored}."
    if record["held"] is not None and tree["size"] > 1:
        where = "inside" if record["held"] else "outside"
        yield f"The planned tree's measured speedup is {where} its predicted interval."
