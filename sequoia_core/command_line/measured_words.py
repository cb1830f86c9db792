"""What the commands that run models say to people: one function for each, of sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..design.plain_trees import chain_tree
from ..design.prediction import tokens_per_step
from ..files.model_names import NO_DRAFT
from .figures import command, counted, duration, durations, figure, percent, sure, table
from .output import AsItIs
from .progress import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..design.acceptance import AcceptanceVector
    from ..design.bootstrap import Estimate
    from ..design.break_even import ChainPays
    from ..design.profile import HardwareProfile

    Parts = Iterator[RenderableType]

BAR = 24  # characters of the longest bar
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


def measure_parts(
    vector: AcceptanceVector, result: Mapping[str, Any], *, within: float, models: Sequence[str], out: Path | None
) -> Parts:
    """Args: within: the ± that more prompts would reach; models: the options that name the pair."""
    prompts, interval = result["prompts"], vector.interval()
    longest = max(float(vector.probs.max()), 1e-9)
    rows = []
    for accepted, ranks in groupby(range(len(vector)), key=lambda index: vector.probs[index] > 0):
        run = list(ranks)
        if not accepted and len(run) > 1:
            most = "" if interval is None else f", at most {percent(interval[1][run].max())}"
            rows.append((f"{run[0] + 1} to {run[-1] + 1}", "", f"0 %{most}"))
            continue
        for index in run:
            prob = float(vector.probs[index])
            low, high = (None, None) if interval is None else (100 * bound[index] for bound in interval)
            bar = "█" * round(BAR * prob / longest) or ("▏" if prob > 0 else "")
            rows.append((str(index + 1), bar, sure(100 * prob, low, high, " %")))
    yield table(("rank", "accepted", "95 % interval"), rows, words=2)
    yield (
        f"The target takes the draft's first choice {percent(vector.probs[0])} of the time and one of its "
        f"{counted(len(vector), 'choice')} {percent(1 - vector.reject)}: {vector.trials:,} positions of "
        f"{counted(prompts, 'prompt')}, {result['source']}."
    )
    yield from _by_depth(vector)
    if result.get("wiring"):
        yield result["wiring"]
    more = result["more_prompts"]
    if vector.of_one_prompt:
        yield "One prompt has no interval over texts: measure on two or more (--prompt-count, --prompts)."
    elif more is not None:
        wanted = f"About {more:,} more prompts like these would bring" if more else "These prompts bring"
        yield f"{wanted} every rank to ±{100 * within:g} point."
    if result["resumed_prompts"]:
        yield f"{counted(result['resumed_prompts'], 'prompt')} of them had been measured before."
    if out is None:
        yield "Nothing was saved: --out vector.json keeps it, prompt by prompt."
    yield command("profile", *models, "--out", "profile.json")


def _by_depth(vector: AcceptanceVector) -> Parts:
    """Say what each depth of a draft head is worth."""
    if vector.by_depth is None:
        return
    bounds, rows, before = vector.by_depth.interval(), [], 1.0
    for depth, row in enumerate(vector.by_depth.probs, start=1):
        low, high = (None, None) if bounds is None else (100 * float(part[depth - 1, 0]) for part in bounds)
        tokens = tokens_per_step(chain_tree(depth), vector)
        rows.append(
            (str(depth), sure(100 * float(row[0]), low, high, " %"), percent(row.sum()), f"+{tokens - before:.2f}")
        )
        before = tokens
    yield table(("depth", "first choice, 95 % interval", "one of all", "tokens that a chain gains"), rows)
    yield "Beyond the first depth the head reads its own outputs; trees are planned by these chances."


def profile_parts(
    profile: HardwareProfile, idle: tuple[int, float], out: Path | None, pays: ChainPays | None = None
) -> Parts:
    """Args: idle: tokens of a pass that cost hardly more than one, and what each beyond costs in passes over one."""
    quartiles = profile.quartiles
    rows = []
    for index, n in enumerate(profile.sizes.tolist()):
        half = "" if quartiles is None else durations(*(float(quartile[index]) for quartile in quartiles))
        rows.append((str(n), duration(profile.verify_sec[index]), half, f"{float(profile.t(n)):.2f}"))
    how = "modelled" if profile.modelled else "measured"
    models = f"{profile.meta.get('target', 'a target')} ← {profile.meta.get('draft', 'a draft')}"
    yield f"{models} in {profile.dtype}, {how}: {profile.device}"
    columns = ("n", "target pass", "middle half of rounds", "t(n)")
    shown = (0, 1, 3) if quartiles is None else (0, 1, 2, 3)
    yield table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], words=0)
    widths = profile.draft_widths.tolist() or [1]
    draft = [(str(w), duration(float(profile.draft_at(w))), figure(float(profile.draft_cost(w)))) for w in widths]
    alone = profile.meta.get("draft") == NO_DRAFT
    if not alone:
        yield table(("tokens", "draft pass", "c"), draft, words=0)
    c = "" if alone else ", c a draft pass ÷ the same"
    yield f"t(n) is a target pass over n tokens ÷ one over a single token{c}; {profile.context} tokens in the cache."
    tokens, further = idle
    beyond = f"; each beyond costs {further:.2f} of a pass" if further else ", the most that was timed"
    yield f"Up to n = {tokens} a pass takes at most 10 % longer than over one token{beyond}."
    if pays is not None:
        even = "at no acceptance" if pays.breaks_even is None else f"from {percent(pays.breaks_even)} on"
        yield (
            f"A draft that is right {percent(pays.guess)} of the time "
            + (
                f"pays: chains of {pays.length} give {figure(pays.speedup)}× the speed"
                if pays.speedup > 1
                else f"does not pay: its best chain, of {pays.length}, gives {figure(pays.speedup)}× the speed"
            )
            + f"; it pays {even}."
        )
    if out is None:
        yield "Nothing was saved: --out profile.json keeps it."
    if alone:
        yield command("lookup", "--responses", "answers.jsonl", "--profile", out or "profile.json")
    else:
        yield command("plan", "--acceptance", "vector.json", "--profile", out or "profile.json")


ENDS = {"eos": "ended by itself", "length": "cut at --max-new-tokens", "context": "the context is full"}


def generate_parts(result: Mapping[str, Any], models: Sequence[str], tokenizer: Sequence[str] = ()) -> Parts:
    tokens, tree = len(result["tokens"]), result["tree"]
    yield AsItIs(result["text"])
    yield ""
    rate = f"{tokens / result['seconds']:.1f} tokens/s, prompt reading counted"
    yield (
        f"{counted(tokens, 'token')} in {counted(result['steps'], 'step')}, {result['tokens_per_step']:.2f} per step; "
        f"{duration(result['seconds'])} ({rate}), {result['dtype']}; {ENDS[result['finished']]}."
    )
    yield f"Trees of at most {counted(tree['size'], 'node')}, {tree['depth']} deep: {tree['source']}."
    if "none" in models:
        yield "What such trees do for recorded answers:"
        yield command("lookup", "--responses", "answers.jsonl", *tokenizer)
    else:
        yield "How much faster that is than without a draft:"
        yield command("bench", *models)


def bench_parts(record: Mapping[str, Any], over_plain: Mapping[str, Estimate], models: Sequence[str]) -> Parts:
    settings, tree, plain = record["settings"], record["tree"], record["same_as_plain"]
    ranked = sorted(set(over_plain) - set(plain), key=lambda name: -over_plain[name].value)
    rows = []
    for name in ranked:
        row = record[name]
        low, high = row.get("predicted_interval", (None, None))
        predicted = sure(row["predicted_speedup"], low, high, "×") if "predicted_speedup" in row else ""
        speed = "1" if name == "autoregressive" else sure(*over_plain[name], "×")
        method = METHODS.get(name, name) + (" *" if name == record["fastest"] else "")
        rows.append((method, figure(row["tokens_per_sec"]), speed, predicted, figure(row["tokens_per_step"])))
    yield table(("method", "tokens/s", "× no draft", "predicted", "tokens/step"), rows)
    yield (
        f"{counted(settings['prompts'], 'prompt')}, {settings['max_new_tokens']} tokens each, temperature "
        f"{settings['temperature']:g}, {settings['dtype']}, {settings['device']}. Acceptance was measured on "
        f"{counted(settings['calibration_prompts'], 'other prompt')}."
    )
    if settings["prompts"] < 2:
        yield "One prompt has no interval over texts: race two or more (--prompt-count, --prompts)."
    hf = "HF: transformers' own generation, whole decodes in both. " if "hf_generate" in over_plain else ""
    star = "* The fastest by steps alone" if record["fastest"] else "No method is the fastest beyond the noise"
    yield f"{star}; tokens/s count reading the prompt too. {hf}".rstrip()
    if tree["size"] == 1:
        yield "The plan is to decode without a draft: no tree is predicted to pay for this pair on this machine."
    else:
        yield f"The planned tree has {counted(tree['size'], 'node')} and is {tree['depth']} deep."
    yield f"The best chain drafts {counted(record['chain_length'], 'token')}."
    if others := [METHODS[name] for name in plain if name != "sequoia"]:
        yield f"Decode without a draft too, and have its figures: {', '.join(others)}."
    for name, why in record["lanes_left_out"].items():
        yield f"{METHODS.get(name, name)} is left out: {why}."
    if record["settings_left_out"]:
        own = ", ".join(f"{name} {value}" for name, value in record["settings_left_out"].items())
        yield f"The target ships settings of its own, which no method follows: {own}."
    held = {True: "inside", False: "outside", None: None}[record["held"]]
    if held is not None and tree["size"] > 1:
        yield f"The planned tree's measured speed is {held} its predicted interval."
    yield "What was measured for this plan alone, measure and profile keep for others:"
    yield command("measure", *models, "--temperature", f"{settings['temperature']:g}", "--out", "vector.json")


def server_check_parts(result: Mapping[str, Any], out: Path | None) -> Parts:
    rows = []
    for row in result["rows"]:
        measured, predicted = row["measured"], row["predicted"]
        said = "–" if predicted is None else f"{predicted['value']:.2f}×"
        speed = sure(measured["value"], measured["low"], measured["high"], "×") if row["k"] else "1"
        yields = "" if row["tokens_per_step"] is None else f"{row['tokens_per_step']:.2f}"
        expected = row["predicted_tokens_per_step"]
        yields += f" ({expected:.2f})" if yields and expected is not None else ""
        rows.append((str(row["k"]), said, speed, yields, f"{row['tokens_per_sec']:.1f}"))
    requests = f"{counted(result['requests'], 'request')} of {result['max_new_tokens']} tokens"
    yield f"{result['engine']}, {result['method']}: {requests}."
    yield table(("K", "predicted", "measured", "per step", "tokens/s"), rows)
    seen = ", ".join(str(row["k"]) for row in result["rows"] if row["planned_from"])
    yield f"Per step: tokens, in brackets as predicted. The plan saw K = {seen}."
    if apart := [str(row["k"]) for row in result["rows"] if row.get("tokens_per_step_held") is False]:
        yield f"K = {', '.join(apart)}: tokens per step differ from the prediction by more than chance."
    if result["requests"] < 2:
        yield "One request has no interval over texts."
    error, over = result["median_abs_error"], result["chosen_over_best"]
    if error is not None:
        yield f"Settings that the plan did not see are predicted to {percent(error)}, in the median."
    if over is not None:
        ratio = sure(over["value"], over["low"], over["high"])
        yield f"Best measured: K = {result['best']}; the plan's K = {result['chosen']} has {ratio} times its speed."
    if result["same_text"] is not None:
        yield f"{result['same_text']:.0%} of the answers are the same text as without a draft."
    yield from result["notes"]
    if out is None:
        yield "Nothing was saved: --out FILE keeps it."


def audit_parts(result: Mapping[str, Any], out: Path | None) -> Parts:
    yield result["verdict"]
    if result["lossless"] is False and result["p_value"] is not None:
        yield f"{result['false_alarm']:.0%} of lossless servers look so: run it again."
    drafts = "" if result["drafts"] is None else f", {counted(result['drafts'], 'draft')}"
    yield f"{counted(result['requests'], 'request')}, {counted(result['prompts'], 'prompt')}{drafts}."
    if out is None:
        yield "Nothing was saved: --out FILE keeps it."


def sweep_parts(result: Mapping[str, Any], plan: Path, out: Path) -> Parts:
    rest = f"; {counted(result['skipped'], 'row')} were there already" if result["skipped"] else ""
    yield (
        f"{result['done']} of {counted(result['jobs'], 'job')} done, {result['failed']} failed, in "
        f"{span(result['seconds'])}: {counted(result['rows'], 'row')} written{rest}."
    )
    if result["failed"] or result["failed_before"]:
        yield command("sweep", plan, "--out", out, "--retry-failed")
    else:
        yield AsItIs(f"Next: open {out} on the page Draft, Which draft?, or read it in Python (docs/sweeps.md).")


def dry_sweep_parts(result: Mapping[str, Any], plan: Path, out: Path) -> Parts:
    texts = ", ".join(f"{name} {count}" for name, count in result["prompts"].items())
    yield (
        f"{counted(result['jobs'], 'job')} to do, {result['timed']} of them timed one by one; "
        f"{result['skipped']:,} rows are there already, {result['failed_before']:,} failed before."
    )
    yield f"{counted(result['pairs'], 'pair')}; prompts: {texts}."
    yield table(("temperature", "top-p"), [[f"{value:g}" for value in way[:2]] for way in result["settings"]], words=0)
    yield command("sweep", plan, "--out", out)
