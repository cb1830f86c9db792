"""Measure the demo pair and write all shipped assets.

    python scripts/make_demo_assets.py prompts varied --work /tmp/demo-pair     # from the held-out files
    python scripts/make_demo_assets.py vectors profile disk card     # any of these parts, run in this order
    python scripts/make_demo_assets.py robustness growth     # also runs their benchmarks, a quarter of an hour each

The parts write these files:

prompts: assets/prompts/prompts.jsonl
varied: assets/prompts/not-looping.jsonl, held-out prompts whose greedy continuations do not loop
edits: assets/prompts/edits.jsonl, held-out functions, each followed by its first lines under a different name
responses: assets/responses/demo-greedy.jsonl, the target's greedy answers to the prompts of `varied`
vectors: assets/acceptance/demo*-t*.json
profile: assets/profiles/cpu-2core*.json; on processors without AMX, only bfloat16, in a separate file
disk: assets/scenarios/profiles/demo-*-disk.json, with the target's weights on disk (used by a scenario)
race, tokens: assets/runs/race.json, example-tokens.json
robustness: assets/runs/robustness.json, from benchmarks/robustness.py and the page's losslessness check
growth: assets/runs/growth.json, from benchmarks/dynamic.py --growth
sweep: assets/sweeps/demo
card: assets/demo/README.md

`vectors`, `profile` and `disk` include the larger draft and the head if they exist. In assets/prompts, prose.jsonl and
chat.jsonl are written by hand.
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

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

ROOT = Path(__file__).resolve().parent.parent

ASSETS = ROOT / "assets"
RESPONSES = ASSETS / "responses" / "demo-greedy.jsonl"
PROMPT_COUNT, VARIED_COUNT = 240, 32  # predictions within 5 % need 90 to 150 prompts
HEAD_PROMPTS = 64  # fewer, because a head's vector has eight depths
EDIT_COUNT, EDIT_TOKENS = 32, (96, 200)  # number of functions, and the range of their lengths in tokens
SHORTEST, LONGEST, PER_FILE = 48, 96, 8  # range of prompt lengths in tokens, and maximum number of prompts per file
TEMPERATURES = (0.0, 0.6)
DTYPE = "bfloat16"  # the app's default with compiled passes
# File name suffix -> draft folder.
DRAFTS = {"": "draft", "-large": "draft-large", "-head": "head", "-block-head": "block-head"}
EXAMPLE_SIZES, EXAMPLE_DEPTHS = (16, 32, 64), range(3, 25)  # sizes and depths of the trees shown with text
PARTS = "prompts varied edits responses vectors profile disk tokens race robustness growth sweep card"
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DISK_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
PROFILES = {"float32": "cpu-2core", "bfloat16": "cpu-2core-bfloat16"}
KINDS_OF_TEXT = ("prompts", "not-looping", "edits", "prose", "chat")  # prompt files that the model card compares
KIND_PROMPTS, KIND_TREE = 16, 16  # prompts per file, and tree size in nodes
FIRST_PROMPT = 'def mean(numbers):\n    """\n    Return the'  # shown on the first screen
RECORDED_PROMPT = 8  # stays in its place when prompts are added
BLOCKS = ("def ", "class ", "if ", "for ", "while ", "with ", "try:", "else:")  # prompts end where a block begins
OPENINGS = ("def ", "class ", "@", "import ", "from ", "#", '"""')  # natural starting points


def held_out_files(work: Path):
    """Yield each held-out file's name and lines, alternating between packages, and a shared random generator."""
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
    """Yield passages of 48 to 96 tokens that start at an opening and end at one of the lines in `ends`."""
    for end in ends:
        for begin in range(max(0, end - 3), max(-1, end - 60), -1):
            if not lines[begin].startswith(OPENINGS):
                continue
            # Strip the last line break, which the tokenizer merges with the indentation that follows.
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
    """Add prompts that end where a block begins, a few per held-out file, alternating between packages."""
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
    """Shuffle the prompts so that the first ones are a fair sample; one stays in place."""
    others = [row for place, row in enumerate(rows) if place != RECORDED_PROMPT]
    random.Random(11).shuffle(others)
    return [*others[:RECORDED_PROMPT], rows[RECORDED_PROMPT], *others[RECORDED_PROMPT:]]


def write_varied_prompts(work: Path, pair) -> None:
    """Write one prompt per held-out file that the target continues greedily by 128 tokens without looping or ending."""
    from sequoia_core import autoregressive
    from sequoia_core.measuring.race import LOOPING_SHARE, repeated_share

    tokenizer, rows, tried = read_tokenizer(work), [], 0
    for name, lines, chooser in held_out_files(work):
        if len(rows) == VARIED_COUNT:
            break
        ends = chooser.sample(range(len(lines)), len(lines))
        for text in itertools.islice(passages(lines, ends, tokenizer), 24):
            tried += 1
            ids = pair.tokenizer.encode(text)
            output = [t for step in autoregressive(ids, pair) for t in step.new_tokens]
            if len(output) == 128 and repeated_share(output) <= LOOPING_SHARE:
                rows.append({"text": text, "source": name})
                break
    print(f"{len(rows)} of the {tried} prompts tried do not loop")
    save_prompts(rows, "not-looping.jsonl")


def write_edits(pair) -> None:
    """Write prompts that imitate code editing: a held-out function, followed by its start under a different name."""
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
                again = "\n".join(lines)  # Without two lines of body, a small model would write a different function.
                asked = f"# The same as {function.name}, under another name:"
                rows.append({"text": f"{code}\n\n\n{asked}\n{again}", "source": name})
                break
    save_prompts(rows[:EDIT_COUNT], "edits.jsonl")


def write_responses(out: Path = RESPONSES, prompts: int | None = None, new_tokens: int = 128) -> None:
    """Write the target's greedy answers to the prompts that do not loop, the replay page's example.

    They are token ids computed in float32, so that every processor gives the same ones.
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
    """Yield each draft's file name suffix and pair; the target is closed afterwards."""
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
            prompts = encoded_prompts(pair)[: HEAD_PROMPTS if pair.draft.state_indices else None]
            vector = measure_acceptance(prompts, pair, sampling=SamplingConfig(temperature))
            vector.meta["pair"] = f"{pair.target.name} ← {pair.draft.name}"
            vector.meta["source"] = f"measured on {len(prompts)} held-out prompts × 128 tokens that the target wrote"
            vector.save(ASSETS / "acceptance" / f"demo{name}-t{temperature:g}.json")
            print(f"{pair.draft.name}, T={temperature}: p = {vector.probs[:6].round(4)}, sum {vector.probs.sum():.4f}")


def write_profiles() -> None:
    from sequoia_extras.cpu_kernels import instruction_sets

    found, why_none = instruction_sets.choose_instruction_set()
    if found is None:
        sys.exit(f"error: {why_none}; expected compiled passes, which the app uses")
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


def write_example_tokens() -> None:
    """Record the larger draft's proposals for the trees that the tree page shows with tokens."""
    import torch

    from sequoia_core import AcceptanceVector, load_pair, optimal_tree

    folders = [ASSETS / "demo" / role for role in ("target", "draft-large")]
    pair = load_pair(*folders, device="cpu", dtype="float32")
    paths = {(): 0}  # ranks on the path to a node -> maximum number of children
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
    """Run the race page with a profile of this machine, and record its race for replay."""
    from streamlit.testing.v1 import AppTest

    from sequoia_core import load_pair, measure_profile
    from sequoia_core.models.processor import processor_name
    from ui.race.track import describe_method
    from ui.session.state import KEY, Chosen, SessionState

    page = AppTest.from_file(str(ROOT / "pages" / "race.py"), default_timeout=300)
    page.session_state[KEY] = SessionState(profile=Chosen(measure_profile(load_pair()), "measured"))
    page.run().button(key="race_start").click().run()
    job = page.session_state[KEY].jobs["race"]
    while job.active:
        time.sleep(0.5)
    methods = [describe_method(name, run) for name, run in job.result.runs.items()]
    for one in methods:
        one["ends"] = [round(end, 6) for end in one["ends"]]
    label = f"the demo pair, greedy, {job.info.max_new_tokens} tokens, two cores of an {processor_name()}"
    path = ASSETS / "runs" / "race.json"
    path.write_text(json.dumps({"label": label, "methods": methods}, ensure_ascii=False) + "\n", encoding="utf-8")
    print("race", {one["name"]: one["ends"][-1] for one in methods})


def run_benchmark(script: str, *options: str, record: str) -> Path:
    """Run a benchmark, and return the path of its record."""
    subprocess.run([sys.executable, ROOT / "benchmarks" / script, *options], check=True)
    return max((ROOT / "benchmarks" / "results").glob(f"{record}-*.json"))


def write_growth() -> None:
    shutil.copy(run_benchmark("dynamic.py", "--growth", record="growth"), ASSETS / "runs" / "growth.json")


def write_robustness() -> None:
    """Run the robustness benchmark and the losslessness check, and write their results for the page."""
    import numpy as np

    from sequoia_core import SamplingConfig
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.files.safe_files import json_bytes
    from sequoia_core.trees.plain import branching_tree
    from sequoia_extras.evaluation.verifier_comparison import TreeRun, VerifierComparison
    from ui.exact.measurements import CheckSubject, lossless_work
    from ui.jobs.jobs import Job, JobContext
    from ui.session import evidence

    benchmark = run_benchmark("robustness.py", "--dtype", DTYPE, "--max-new-tokens", "128", record="robustness")
    measured = json.loads(benchmark.read_text())
    columns = ("steps", "yielded", "committed", "seconds")
    runs = tuple(
        TreeRun(run["verifier"], SamplingConfig(run["temperature"], run["top_p"]), *(np.array(run[c]) for c in columns))
        for run in measured["verifiers"]["runs"]
    )
    comparison = VerifierComparison(runs, measured["verifiers"]["settings"])
    recorded = {
        "pair": "demo pair",
        "recorded": measured["settings"]["date"],
        "tree_source": f"best of its shape for {Path(measured['settings']['tree']['planned_for']).stem}",
    }
    compared = {
        "settings": comparison.settings | recorded,
        "runs": comparison.rows(),
        "ratios": comparison.ratios(),
        "rejection": measured["rejection"]["rejection"],
    }
    prompt = load_prompts(ASSETS / "prompts" / "prompts.jsonl")[0]
    subject = CheckSubject("demo pair", branching_tree([3, 2]), "branching 3 × 2", prompt)
    checked = lossless_work(subject, verifier="sequoia", samples=4000)(JobContext(Job("record")))
    checked["settings"] |= {"recorded": date.today().isoformat()}
    parts = dict(zip(evidence.EVIDENCE_PARTS, (compared, checked), strict=True))
    path = ASSETS / "runs" / "robustness.json"
    path.write_bytes(json_bytes({"format": evidence.EVIDENCE_FORMAT, "version": evidence.EVIDENCE_VERSION, **parts}))
    print(f"robustness: {len(runs)} runs, p-value {checked['p_value']:.2g}, {path.stat().st_size:,} bytes")


def acceptance_rows(name: str) -> str:
    """Return the model card's rows for one draft's shipped vectors."""
    from sequoia_core import AcceptanceVector

    vectors = {t: AcceptanceVector.load(ASSETS / "acceptance" / f"demo{name}-t{t:g}.json") for t in TEMPERATURES}
    return "\n".join(
        f"| {name.lstrip('-') or 'small'} | {t:g} | "
        + " ".join(f"{p:.4f}" for p in v.probs[:2])
        + f" | {v.probs.sum():.4f} |"
        for t, v in vectors.items()
    )


def kind_row(pair, kind: str, *, new_tokens: int = 128) -> str:
    """Return the model card's row for one prompt file: the target's loss, and the small draft's acceptance."""
    import torch

    from sequoia_core import SamplingConfig, measure_acceptance, optimal_tree
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.planning.prediction import tokens_estimate

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
    from sequoia_core.measuring.race import repeated_share

    files = (
        "training.json", "training-large-draft.json", "head/training.json", "head/config.json",
        "block-head/training.json", "block-head/config.json",
    )  # fmt: skip
    read = (json.loads((ASSETS / "demo" / name).read_text()) for name in files)
    facts, large, trained, head, trained_block, block = read
    reads = ", ".join(f"{place + 1}" for place in head["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    head_mb, block_mb = (
        (ASSETS / "demo" / folder / "model.safetensors").stat().st_size / 1e6 for folder in ("head", "block-head")
    )
    outputs = [
        [token for step in autoregressive(ids, pair) for token in step.new_tokens] for ids in encoded_prompts(pair)
    ]
    looping = sum(repeated_share(output) > 0.5 for output in outputs) / len(outputs)
    rows = "\n".join(acceptance_rows(name) for name in DRAFTS)
    kinds = "\n".join(kind_row(pair, kind) for kind in KINDS_OF_TEXT)
    shape, further = facts["recipe"], large["recipe"]
    sizes = " | ".join(", ".join(map(str, row)) for row in (shape["target"], shape["draft"], further["large_draft"]))
    card = f"""# The demo pair

A target, two drafts and two draft heads with the Llama architecture and a byte-level BPE tokenizer of \
{shape["vocab"]} tokens, trained
from scratch on Python source code by `scripts/train_demo_pair.py`. With them every page works without a download. They
write plausible-looking Python, nothing more.

| | target | small draft | large draft |
|---|---|---|---|
| folder | `target` | `draft` | `draft-large` |
| parameters | {facts["target_parameters"]:,} | {facts["draft_parameters"]:,} | {large["draft_parameters"]:,} |
| hidden, layers, heads, intermediate | {sizes} |
| held-out loss, nats per token | {facts["target_held_out_loss"]:.3f} | {facts["draft_held_out_loss"]:.3f} | \
{large["draft_held_out_loss"]:.3f} |

**Data.** Python's standard library and the pinned packages listed in the recipe (licenses: PSF, BSD, MIT, Apache-2.0),
at most {shape["package_bytes"] // 1_000_000} MB of each: {facts["train_tokens"]:,} tokens for training and \
{facts["held_out_tokens"]:,} held out, the same for every model.

**Drafts** are distilled from the target; the small one half on this text and half on text generated by the target
({facts["written_tokens"]:,} tokens). The large draft is a wider and deeper copy of the small one with further training.

**Head** (`head`). EAGLE-3 as first published, with {trained["parameters"]:,} parameters, {head_mb:.1f} MB. It reads \
the target's hidden states
after layers {reads} and its embedding, and has a draft vocabulary of {head["draft_vocab_size"]:,} tokens. Trained by
`scripts/train_head.py` on {trained["written_tokens"]:,} tokens generated by the target, with three steps of its own \
output, in {trained["minutes"]:g} minutes
on an NVIDIA H200.

**Block head** (`block-head`). DFlash as first published, with {trained_block["parameters"]:,} parameters, \
{block_mb:.1f} MB. It drafts
{block["block_size"] - 1} depths in one pass. Trained by the same script on \
{trained_block["written_tokens"]:,} tokens in {trained_block["minutes"]:g} minutes on
two cores of an AMD EPYC.

**Loops.** {looping:.0%} of {len(outputs)} held-out prompts loop when continued greedily by 128 tokens (more than \
half of their 4-grams
occurred before), and repetition is easy to draft.

**Acceptance** of the first two ranks and the sum over 32 ranks, on held-out prompts continued by the target (for
heads: at depth 1):

| draft | temperature | p_1, p_2 | sum of 32 |
|---|---|---|---|
{rows}

**Beyond code** the target is weak: an essay turns into a program comment within a line. Acceptance does not reveal this
because it is measured on text generated by the target. The table shows, for the first {KIND_PROMPTS} prompts of each \
file in
`assets/prompts` (the first three are code) and 128 new tokens each, the target's loss in nats per token and, for the
small draft, p_1 and the expected tokens per pass of the best tree of {KIND_TREE} nodes with its 95% interval.

| prompts | loss | p_1, T = 0 | tokens | p_1, T = 0.6 | tokens |
|---|---|---|---|---|---|
{kinds}

**Limits.** The context is {shape["context"]} tokens. Weights are stored in bfloat16.
"""
    (ASSETS / "demo" / "README.md").write_text(card)
    print(f"looping share {looping:.2f}")


def write_sweep() -> None:
    """Run the missing jobs of the shipped sweep, and merge their result files."""
    from sequoia_extras.sweeps.executors import LocalWorkers
    from sequoia_extras.sweeps.plan import read_plan
    from sequoia_extras.sweeps.results import Results, read_rows
    from sequoia_extras.sweeps.run import run_sweep

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
    parser.add_argument("--work", type=Path, help="work folder of train_demo_pair.py, needed by prompts and varied")
    args = parser.parse_args()
    if {"prompts", "varied"} & set(args.parts) and args.work is None:
        parser.error("--work is required for prompts and varied")
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
