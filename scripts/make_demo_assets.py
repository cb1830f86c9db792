"""Measure the demo pair and write everything that is shipped beside it.

    python scripts/make_demo_assets.py prompts varied --work /tmp/demo-pair     # from the recipe's split
    python scripts/make_demo_assets.py vectors profile disk run card     # any of them, in this order
    python scripts/make_demo_assets.py robustness growth               # and their benchmarks; a quarter of an hour each

prompts: assets/prompts/prompts.jsonl      vectors: assets/acceptance/demo-t*.json
varied: assets/prompts/not-looping.jsonl, held-out prompts whose greedy continuation does not loop
edits: assets/prompts/edits.jsonl, held-out functions with the beginning of the same under another name
responses: assets/responses/demo-greedy.jsonl, what the target answers to them greedily
profile: assets/profiles/cpu-2core*.json; without AMX in bfloat16 only, in a file of that processor's own
run, race, tokens: assets/runs/recorded.jsonl, race.json, example-tokens.json   card: assets/demo/README.md
disk: assets/scenarios/profiles/demo-*-disk.json, with the target's weights on disk (a scenario names it)
vectors, profile and disk are measured for the larger draft and the head too, where they are there
robustness: assets/runs/robustness.json, of benchmarks/robustness.py and two checks of the robustness page
growth: assets/runs/growth.json, of benchmarks/dynamic.py --growth
prose.jsonl and chat.jsonl in assets/prompts are written by hand
"""

import argparse
import ast
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

ROOT = Path(__file__).resolve().parent.parent

ASSETS = ROOT / "assets"
RESPONSES = ASSETS / "responses" / "demo-greedy.jsonl"
PROMPT_COUNT, VARIED_COUNT = 240, 32  # a prediction of +-5 % takes 90 to 150
HEAD_PROMPTS = 64  # of those: a head's vector holds eight depths
EDIT_COUNT, EDIT_TOKENS = 32, (96, 200)  # functions, and tokens of one
SHORTEST, LONGEST, PER_FILE = 48, 96, 8  # tokens of a prompt; prompts of one file
TEMPERATURES = (0.0, 0.6)
DTYPE = "bfloat16"  # as the app runs them where passes are compiled
DRAFTS = {"": "draft", "-large": "draft-large", "-head": "head"}  # by what files of theirs have in their names
EXAMPLE_SIZES, EXAMPLE_DEPTHS = (16, 32, 64), range(3, 25)  # of the trees with texts
PARTS = "prompts varied edits responses vectors profile disk run tokens race robustness growth sweep card"
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DISK_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
PROFILES = {"float32": "cpu-2core", "bfloat16": "cpu-2core-bfloat16"}
KINDS_OF_TEXT = ("prompts", "not-looping", "edits", "prose", "chat")  # files whose first prompts the card compares
KIND_PROMPTS, KIND_TREE = 16, 16  # prompts of each, and nodes of the tree
FIRST_PROMPT = 'def mean(numbers):\n    """\n    Return the'  # the first screen's: its first step is words
RECORDED_PROMPT = 8  # the one that the overview's whole chain decodes
BLOCKS = ("def ", "class ", "if ", "for ", "while ", "with ", "try:", "else:")  # prompts end where a block begins
OPENINGS = ("def ", "class ", "@", "import ", "from ", "#", '"""')  # where a reader would begin, too


def held_out_files(work: Path):
    """Yield name and lines of each held-out file, packages in turns, and the random numbers that ordered them."""
    from train_demo_pair import corpus_roots

    names = json.loads((work / "files.json").read_text())["held_out"]
    chooser = random.Random(7)
    chooser.shuffle(names)
    turn = {name: sum(other.split("/")[0] == name.split("/")[0] for other in names[:i]) for i, name in enumerate(names)}
    names.sort(key=turn.get)
    roots = corpus_roots()
    for name in names:
        package, _, path = name.partition("/")
        if "/test" not in path:
            text = (roots[package] / path).read_text(encoding="utf-8").expandtabs(4)
            yield name, text.splitlines(keepends=True), chooser


def passages(lines: list[str], ends: list[int], tokenizer):
    """Yield passages of 48 to 96 tokens, each from an opening to the line at one of `ends`."""
    for end in ends:
        for begin in range(max(0, end - 3), max(-1, end - 60), -1):
            if not lines[begin].startswith(OPENINGS):
                continue
            # without the last line break: the tokenizer joins it with the indentation that follows
            text = "".join(lines[begin : end + 1]).rstrip()
            if SHORTEST <= len(tokenizer.encode(text)) <= LONGEST:
                yield text
                break


def read_tokenizer(work: Path):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")


def save_prompts(rows: list[dict], name: str) -> None:
    (ASSETS / "prompts").mkdir(parents=True, exist_ok=True)
    (ASSETS / "prompts" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    packages = {row["source"].split("/")[0] for row in rows}
    print(f"{len(rows)} prompts from {len(packages)} packages")


def write_prompts(work: Path) -> None:
    """Add prompts that end where a block begins to those there are, a few per held-out file, packages in turns."""
    path = ASSETS / "prompts" / "prompts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    tokenizer, known = read_tokenizer(work), {row["text"] for row in rows}
    found = []
    for name, lines, chooser in held_out_files(work):
        ends = [i for i, line in enumerate(lines) if line.lstrip().startswith(BLOCKS) and line.rstrip().endswith(":")]
        chooser.shuffle(ends)
        texts = [text for text in passages(lines, ends, tokenizer) if text not in known]
        found.append([{"text": text, "source": name} for text in dict.fromkeys(texts[:PER_FILE])])
    for turn in itertools.zip_longest(*found):
        rows += filter(None, turn)
    save_prompts(mixed(rows[:PROMPT_COUNT]), "prompts.jsonl")


def mixed(rows: list[dict]) -> list[dict]:
    """Shuffle prompts, so that the first ones are a fair sample of all; the one that the overview decodes stays."""
    others = [row for place, row in enumerate(rows) if place != RECORDED_PROMPT]
    random.Random(11).shuffle(others)
    return [*others[:RECORDED_PROMPT], rows[RECORDED_PROMPT], *others[RECORDED_PROMPT:]]


def write_varied_prompts(work: Path, pair) -> None:
    """Cut prompts that the target continues greedily by 128 tokens without looping or ending, one per held-out file."""
    from sequoia_core import autoregressive
    from sequoia_core.studies.race import LOOPS_FROM, repeated_share

    tokenizer, rows, tried = read_tokenizer(work), [], 0
    for name, lines, chooser in held_out_files(work):
        if len(rows) == VARIED_COUNT:
            break
        ends = chooser.sample(range(len(lines)), len(lines))
        for text in itertools.islice(passages(lines, ends, tokenizer), 24):
            tried += 1
            ids = pair.tokenizer.encode(text)
            output = [t for step in autoregressive(ids, pair) for t in step.new_tokens]
            if len(output) == 128 and repeated_share(output) <= LOOPS_FROM:
                rows.append({"text": text, "source": name})
                break
    print(f"{len(rows)} of {tried} prompts tried do not loop")
    save_prompts(rows, "not-looping.jsonl")


def write_edits(pair) -> None:
    """Take a function from each held-out file of the shipped prompts, and begin it again under another name.

    What an editing model answers: the old code with small changes.
    """
    from train_demo_pair import corpus_roots

    prompts = (ASSETS / "prompts" / "prompts.jsonl").read_text().splitlines()
    names, roots, rows = dict.fromkeys(json.loads(line)["source"] for line in prompts), corpus_roots(), []
    for name in names:
        package, _, path = name.partition("/")
        text = (roots[package] / path).read_text(encoding="utf-8").expandtabs(4)
        for function in ast.parse(text).body:
            if not isinstance(function, ast.FunctionDef) or function.decorator_list:
                continue
            code = ast.get_source_segment(text, function) or ""
            first = code.partition(":\n")[0] + ":"
            if EDIT_TOKENS[0] <= len(pair.tokenizer.encode(code)) <= EDIT_TOKENS[1] and first.count("\n") == 0:
                lines = [first.replace(f"def {function.name}(", f"def new_{function.name}("), *code.splitlines()[1:3]]
                again = "\n".join(lines)  # two lines of it, or a small model writes another function
                asked = f"# The same as {function.name}, under another name:"
                rows.append({"text": f"{code}\n\n\n{asked}\n{again}", "source": name})
                break
    save_prompts(rows[:EDIT_COUNT], "edits.jsonl")


def write_responses(out: Path = RESPONSES, prompts: int | None = None, new_tokens: int = 128) -> None:
    """Write the target's greedy answers to the prompts that do not loop: the log that the replay page shows first.

    As token ids, and in float32, so that any processor writes the same.
    """
    from sequoia_core import autoregressive, load_pair
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.files.safe_files import write_atomic
    from sequoia_core.models.prompting import encode_prompt

    pair = load_pair(draft="none", dtype="float32")
    lines = []
    for text in load_prompts(ASSETS / "prompts" / "not-looping.jsonl")[:prompts]:
        prompt = encode_prompt(pair, text)
        steps = autoregressive(prompt, pair, max_new_tokens=new_tokens)
        answer = [token for step in steps for token in step.new_tokens]
        lines.append(json.dumps({"prompt_ids": prompt, "token_ids": answer}, separators=(",", ":")))
    out.parent.mkdir(exist_ok=True)
    write_atomic(out, ("\n".join(lines) + "\n").encode())


def encoded_prompts(pair) -> list[list[int]]:
    from sequoia_core.files.prompt_files import load_prompts

    return [pair.tokenizer.encode(text) for text in load_prompts(ASSETS / "prompts" / "prompts.jsonl")]


def loaded_pairs(dtype: str, offload: str | None = None):
    """Yield what files of each draft have in their names, and the pair, whose target is closed afterwards."""
    from sequoia_core import load_pair

    for name, draft in DRAFTS.items():
        if (ASSETS / "demo" / draft).is_dir():
            folders = [ASSETS / "demo" / role for role in ("target", draft)]
            pair = load_pair(*folders, device="cpu", dtype=dtype, offload=offload)
            yield name, pair
            pair.target.close()


def write_vectors() -> None:
    from sequoia_core import SamplingConfig, measure_acceptance

    for name, pair in loaded_pairs(DTYPE):
        for temperature in TEMPERATURES:
            prompts = encoded_prompts(pair)[: HEAD_PROMPTS if pair.draft.reads else None]
            vector = measure_acceptance(prompts, pair, sampling=SamplingConfig(temperature))
            vector.meta["pair"] = f"{pair.target.name} ← {pair.draft.name}"
            vector.meta["source"] = f"measured on {len(prompts)} held-out prompts x 128 tokens that the target wrote"
            vector.save(ASSETS / "acceptance" / f"demo{name}-t{temperature:g}.json")
            print(f"{pair.draft.name}, T={temperature}: p = {vector.probs[:6].round(4)}, sum {vector.probs.sum():.4f}")


def write_profiles() -> None:
    from sequoia_core.native import instruction_sets

    found, why_none = instruction_sets.chosen()
    if found is None:
        sys.exit(f"error: {why_none}; expected compiled passes, as the app uses them")
    files = PROFILES if found.name == "amx" else {DTYPE: f"{PROFILES[DTYPE]}-{found.name}"}
    for dtype, file in files.items():
        for name, pair in loaded_pairs(dtype):
            write_profile(pair, ASSETS / "profiles" / f"{file}{name}.json", sizes=SIZES, repeats=31)


def write_disk_profiles() -> None:
    for name, pair in loaded_pairs(DTYPE, "disk"):
        path = ASSETS / "scenarios" / "profiles" / f"demo-pair{name}-disk.json"
        write_profile(pair, path, sizes=DISK_SIZES, repeats=15)


def write_profile(pair, path: Path, *, sizes: tuple[int, ...], repeats: int) -> None:
    from sequoia_core import measure_profile

    profile = measure_profile(pair, sizes=sizes, repeats=repeats)
    profile.save(path)
    print(
        f"{path.stem}, {profile.device}: target {profile.verify_sec[0] * 1e3:.2f} ms, "
        f"draft {profile.draft_sec * 1e3:.2f} ms, c {profile.c:.3f}, t(16) {float(profile.t(16)):.2f}"
    )


def write_run() -> None:
    from sequoia_core import AcceptanceVector, optimal_tree
    from sequoia_core.models.pair_spec import PairSpec
    from ui.jobs.decode_job import record_run
    from ui.runs.run_files import run_to_bytes
    from ui.runs.runs import DecodeRequest

    vector = AcceptanceVector.load(ASSETS / "acceptance" / "demo-large-t0.json")
    request = DecodeRequest(
        FIRST_PROMPT,
        optimal_tree(vector, size=32, depth=9),
        "best tree of 32 nodes",
        models=PairSpec(
            str(ASSETS / "demo" / "target"), str(ASSETS / "demo" / "draft-large"), dtype=DTYPE, offload="disk"
        ),
        max_new_tokens=128,
    )
    (ASSETS / "runs").mkdir(exist_ok=True)
    run = record_run(request)
    (ASSETS / "runs" / "recorded.jsonl").write_bytes(run_to_bytes(run))
    print(f"recorded {len(run['steps'])} steps")


def write_example_tokens() -> None:
    """Record what the larger draft proposes along every path of the trees that have room for texts on the tree page."""
    import torch

    from sequoia_core import AcceptanceVector, load_pair, optimal_tree

    folders = [ASSETS / "demo" / role for role in ("target", "draft-large")]
    pair = load_pair(*folders, device="cpu", dtype="float32")
    paths = {(): 0}  # of ranks -> children
    for file in sorted((ASSETS / "acceptance").glob("*.json")):
        vector = AcceptanceVector.load(file)
        for size, depth in itertools.product(EXAMPLE_SIZES, EXAMPLE_DEPTHS):
            tree = optimal_tree(vector, size=size, depth=depth)
            for node in range(tree.size):
                ranks = tuple(int(tree.child_ranks[v]) for v in tree.path_to(node)[1:])
                paths[ranks] = max(paths.get(ranks, 0), int(tree.child_counts[node]))
    prompt = pair.tokenizer.encode(FIRST_PROMPT)
    found = {(): prompt[-1]}
    for ranks in sorted(paths, key=lambda ranks: (len(ranks), ranks)):
        if paths[ranks]:
            ids = [*prompt, *(found[ranks[:end]] for end in range(1, len(ranks) + 1))]
            with torch.inference_mode():
                likely = pair.draft.plain_logits(torch.tensor(ids))[-1].topk(paths[ranks]).indices.tolist()
            found |= {(*ranks, rank): token for rank, token in enumerate(likely, 1)}
    tokens = {".".join(map(str, ranks)): pair.text([token]) for ranks, token in found.items()}
    path = ASSETS / "runs" / "example-tokens.json"
    path.write_text(
        json.dumps({"prompt": FIRST_PROMPT, "draft": "draft-large", "tokens": tokens}, ensure_ascii=False) + "\n"
    )
    print(f"{len(tokens)} tokens after the example prompt, {path.stat().st_size:,} bytes")


def write_race() -> None:
    """Run the race page's race with a profile of this machine, and keep what its replay needs."""
    from streamlit.testing.v1 import AppTest

    from sequoia_core import load_pair, measure_profile
    from sequoia_core.native.processor import processor_name
    from ui.race.track import method

    page = AppTest.from_file(str(ROOT / "pages" / "race.py"), default_timeout=300)
    page.session_state["studio_profile"] = measure_profile(load_pair())
    page.session_state["studio_profile_source"] = "measured"
    page.run().button(key="race_start").click().run()
    job = page.session_state["studio_jobs"]["race"]
    while job.active:
        time.sleep(0.5)
    methods = [method(name, run) for name, run in job.result.runs.items()]
    for one in methods:
        one["ends"] = [round(end, 6) for end in one["ends"]]
    label = f"the demo pair, greedy, {job.info.max_new_tokens} tokens, two cores of an {processor_name()}"
    path = ASSETS / "runs" / "race.json"
    path.write_text(json.dumps({"label": label, "methods": methods}, ensure_ascii=False) + "\n", encoding="utf-8")
    print("race", {one["name"]: one["ends"][-1] for one in methods})


def run_benchmark(script: str, *options: str, record: str) -> Path:
    """Run a benchmark -> the record that it wrote."""
    subprocess.run([sys.executable, ROOT / "benchmarks" / script, *options], check=True)
    return max((ROOT / "benchmarks" / "results").glob(f"{record}-*.json"))


def write_growth() -> None:
    shutil.copy(run_benchmark("dynamic.py", "--growth", record="growth"), ASSETS / "runs" / "growth.json")


def write_robustness() -> None:
    """Put the benchmark into the robustness page's form, and record the page's two other checks beside it."""
    import numpy as np

    from sequoia_core import SamplingConfig, TokenTree
    from sequoia_core.design.plain_trees import branching_tree
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.files.safe_files import json_bytes
    from sequoia_core.studies.verifier_comparison import TreeRun, VerifierComparison
    from ui.exact import records
    from ui.exact.measurements import Subject, assumption_work, lossless_work, record_now
    from ui.session import evidence
    from ui.verifier_names import BESIDE

    benchmark = run_benchmark("robustness.py", "--dtype", DTYPE, "--max-new-tokens", "128", record="robustness")
    measured = json.loads(benchmark.read_text())
    columns = ("steps", "yielded", "committed", "seconds")
    runs = tuple(
        TreeRun(run["verifier"], SamplingConfig(run["temperature"], run["top_p"]), *(np.array(run[c]) for c in columns))
        for run in measured["verifiers"]["runs"]
    )
    comparison = VerifierComparison(runs, measured["verifiers"]["settings"])
    recorded = {"pair": "demo pair", "recorded": measured["settings"]["date"]}
    if beside := [kind for kind in BESIDE if any(run.verifier == kind for run in runs)]:
        recorded["beside"] = beside
    source = f"best of its shape for {Path(measured['settings']['tree']['planned_for']).stem}"
    compared = records.comparison_record(
        comparison, rejection=measured["rejection"]["rejection"], **recorded, tree_source=source
    )
    prompts = tuple(load_prompts(ASSETS / "prompts" / "prompts.jsonl"))
    tree = TokenTree(np.array(comparison.settings["tree"], dtype=np.int32))
    small = Subject("demo pair", branching_tree([3, 2]), "branching 3 × 2", prompts[:1])
    whole = Subject("demo pair", tree, source, prompts, 64)
    checked = record_now(lossless_work(small, temperature=1.0, top_p=1.0, verifier="sequoia", samples=4000))
    assumed = record_now(assumption_work(whole, temperature=0.6, top_p=1.0))
    for record in (checked, assumed):
        record["settings"] |= {"recorded": date.today().isoformat()}
    parts = dict(zip(evidence.PARTS, (compared, checked, assumed), strict=True))
    path = ASSETS / "runs" / "robustness.json"
    path.write_bytes(json_bytes({"format": evidence.FORMAT, "version": evidence.VERSION, **parts}))
    print(f"robustness: {len(runs)} runs, p-value {checked['p_value']:.2g}, {path.stat().st_size:,} bytes")


def acceptance_rows(name: str) -> str:
    """Return the table rows of one draft's shipped vectors."""
    from sequoia_core import AcceptanceVector

    vectors = {t: AcceptanceVector.load(ASSETS / "acceptance" / f"demo{name}-t{t:g}.json") for t in TEMPERATURES}
    return "\n".join(
        f"| {name.lstrip('-') or 'small'} | {t:g} | "
        + " ".join(f"{p:.4f}" for p in v.probs[:2])
        + f" | {v.probs.sum():.4f} |"
        for t, v in vectors.items()
    )


def kind_row(pair, kind: str, *, new_tokens: int = 128) -> str:
    """Return the table row of one kind of text: how well the target reads it, and how well it is drafted."""
    import torch

    from sequoia_core import SamplingConfig, measure_acceptance, optimal_tree
    from sequoia_core.design.prediction import tokens_estimate
    from sequoia_core.files.prompt_files import load_prompts

    texts = load_prompts(ASSETS / "prompts" / f"{kind}.jsonl")[:KIND_PROMPTS]
    prompts = [pair.tokenizer.encode(text) for text in texts]
    with torch.inference_mode():
        logits = torch.cat([pair.target.plain_logits(torch.tensor(ids))[:-1] for ids in prompts])
    written = torch.tensor([token for ids in prompts for token in ids[1:]])
    cells = [kind, f"{torch.nn.functional.cross_entropy(logits.float(), written):.2f}"]
    for temperature in TEMPERATURES:
        vector = measure_acceptance(
            prompts, pair, sampling=SamplingConfig(temperature),
            max_new_tokens=new_tokens,
        )  # fmt: skip
        tokens = tokens_estimate(optimal_tree(vector, size=KIND_TREE), vector)
        cells += [f"{vector.probs[0]:.2f}", f"{tokens.value:.2f} [{tokens.low:.2f}, {tokens.high:.2f}]"]
    return f"| {' | '.join(cells)} |"


def write_card(pair) -> None:
    from sequoia_core import autoregressive
    from sequoia_core.studies.race import repeated_share

    files = ("training.json", "training-large-draft.json", "head/training.json", "head/config.json")
    facts, large, trained, head = (json.loads((ASSETS / "demo" / name).read_text()) for name in files)
    reads = ", ".join(f"{place + 1}" for place in head["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    head_mb = (ASSETS / "demo" / "head" / "model.safetensors").stat().st_size / 1e6
    outputs = [
        [token for step in autoregressive(ids, pair) for token in step.new_tokens] for ids in encoded_prompts(pair)
    ]
    looping = sum(repeated_share(output) > 0.5 for output in outputs) / len(outputs)
    rows = "\n".join(acceptance_rows(name) for name in DRAFTS)
    kinds = "\n".join(kind_row(pair, kind) for kind in KINDS_OF_TEXT)
    shape, further = facts["recipe"], large["recipe"]
    sizes = " | ".join(", ".join(map(str, row)) for row in (shape["target"], shape["draft"], further["large_draft"]))
    card = f"""# The demo pair

Llama-architecture models with one byte-level BPE tokenizer of {shape["vocab"]} tokens, trained from scratch on Python
source code by `scripts/train_demo_pair.py`: a target, two drafts and a head. They make every page work without a
download, and write plausible-looking Python, nothing more.

| | target | small draft | large draft |
|---|---|---|---|
| folder | `target` | `draft` | `draft-large` |
| parameters | {facts["target_parameters"]:,} | {facts["draft_parameters"]:,} | {large["draft_parameters"]:,} |
| hidden, layers, heads, intermediate | {sizes} |
| held-out loss, nats per token | {facts["target_held_out_loss"]:.3f} | {facts["draft_held_out_loss"]:.3f} | \
{large["draft_held_out_loss"]:.3f} |

**Data.** The standard library of Python and the pinned packages that the recipe names (licences: PSF, BSD, MIT,
Apache-2.0), at most {shape["package_bytes"] // 1_000_000} MB of each: {facts["train_tokens"]:,} tokens to train on,
{facts["held_out_tokens"]:,} held out, the same for every model.

**Drafts** are distilled from the target, the small one half on that text and half on text that the target wrote
({facts["written_tokens"]:,} tokens). The large one is the small one made wider and deeper, and trained on.

**Head** (`head`). EAGLE-3 as first published, {trained["parameters"]:,} parameters, {head_mb:.1f} MB, on the target's
states after {reads} layers and its embedding; it can propose {head["draft_vocab_size"]:,} tokens. Trained by
`scripts/train_head.py` on {trained["written_tokens"]:,} tokens that the target wrote, fed its own output for three
steps, in {trained["minutes"]:g} minutes on an NVIDIA H200.

**Looping.** Of {len(outputs)} held-out prompts continued greedily by 128 tokens, {looping:.0%} loop (more than half of
their 4-grams occurred before), and repetition is easy to draft.

**Acceptance** of the first two ranks and of 32 together, on held-out prompts and text that the target wrote; of the
head at depth 1:

| draft | temperature | p_1, p_2 | sum of 32 |
|---|---|---|---|
{rows}

**Outside code** the target is weak: within a line, an essay becomes a comment of a program. Acceptance does not show
this, because it is about text that the target wrote. Below, on the first {KIND_PROMPTS} prompts of each file of
`assets/prompts` (the first three are code), 128 new tokens each: the target's loss in nats per token, and for the
small draft p_1 and the expected tokens per pass of the best tree of {KIND_TREE} nodes, with its 95% interval.

| prompts | loss | p_1, T = 0 | tokens | p_1, T = 0.6 | tokens |
|---|---|---|---|---|---|
{kinds}

**Limits.** Context {shape["context"]} tokens. Weights are stored in bfloat16.
"""
    (ASSETS / "demo" / "README.md").write_text(card)
    print(f"looping share {looping:.2f}")


def write_sweep() -> None:
    """Run what is missing of the shipped sweep, and join the files of its jobs into one."""
    from sequoia_core.sweeps.executors import LocalWorkers
    from sequoia_core.sweeps.plan import read_plan
    from sequoia_core.sweeps.results import Results, read_rows
    from sequoia_core.sweeps.run import run_sweep

    results, workers = Results(ASSETS / "sweeps" / "demo"), LocalWorkers()
    try:
        state = run_sweep(read_plan(results.folder / "plan.toml"), results, workers)
    finally:
        workers.close()
    if state.faults:
        raise SystemExit(f"failed: {state.faults}")
    files = list((results.folder / "rows").glob("*.parquet"))
    if len(files) > 1:
        rows = read_rows(results.folder)
        joined = results.add(rows.astype(object).where(rows.notna(), None).to_dict("records"))
        for path in set(files) - {joined}:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts",
        nargs="+",
        choices=PARTS.split(),
    )
    parser.add_argument("--work", type=Path, help="the recipe's work folder, for both kinds of prompts")
    args = parser.parse_args()
    if {"prompts", "varied"} & set(args.parts) and args.work is None:
        parser.error("prompts and varied need --work")
    if "prompts" in args.parts:
        write_prompts(args.work)
    if {"varied", "edits", "card"} & set(args.parts):
        from sequoia_core import load_pair

        pair = load_pair(device="cpu", dtype=DTYPE)
    if "varied" in args.parts:
        write_varied_prompts(args.work, pair)
    if "edits" in args.parts:
        write_edits(pair)
    if "responses" in args.parts:
        write_responses()
    if "vectors" in args.parts:
        write_vectors()
    if "profile" in args.parts:
        write_profiles()
    if "disk" in args.parts:
        write_disk_profiles()
    if "run" in args.parts:
        write_run()
    if "tokens" in args.parts:
        write_example_tokens()
    if "race" in args.parts:
        write_race()
    if "robustness" in args.parts:
        write_robustness()
    if "growth" in args.parts:
        write_growth()
    if "sweep" in args.parts:
        write_sweep()
    if "card" in args.parts:
        write_card(pair)


if __name__ == "__main__":
    main()
