"""Train the demo pair: a target and a draft that imitates it, on Python source found on any machine after `make`.

    python scripts/train_demo_pair.py --work /tmp/demo-pair --out assets/demo
    python scripts/train_demo_pair.py --smoke --work /tmp/smoke --out /tmp/smoke/demo     # half a minute, for the tests
    python scripts/train_demo_pair.py --large-draft --work /tmp/large-draft --out assets/demo --float32

`--large-draft` trains nothing but a second, stronger draft for the pair that lies in `--out` already: the first draft
made wider and deeper, and distilled on from there: first in the same way, then mostly on the text that the target has
written, with the target's probabilities there computed once (5 GB in `--work`). It is resumable, and needs a work
folder of its own, since the corpus is encoded with the tokenizer of the target in `--out`.

Stages, each skipped when its result already lies in `--work`, so that an interrupted run goes on where it stopped:
corpus -> tokenizer -> token ids -> target (cross-entropy) -> text the target writes -> draft (distilled from the target
on corpus and on that text) -> model card. Measured acceptance is `scripts/make_demo_assets.py`'s job.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib.util
import json
import math
import random
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PACKAGES = (
    "accelerate altair click huggingface_hub jinja2 jsonschema markdown_it mpmath narwhals networkx numpy packaging "
    "pandas PIL pydantic pygments regex requests rich safetensors scipy starlette streamlit sympy tokenizers torch "
    "tqdm transformers typer urllib3 uvicorn websockets"
).split()
END = "<|endoftext|>"
HELD_OUT_SHARE = 0.02
VOCABULARY = {"embed_tokens", "lm_head"}  # tensors with a row for each token
FLOAT32 = False  # --float32: processors without bfloat16 products train several times faster without autocast
# GPT-4-style splitting, with a line break and its indentation as one piece: Python's layout costs few tokens.
SPLIT = (
    r"""\r?\n[ \t]*|[^\S\r\n]?[A-Za-z_][A-Za-z_0-9]*|[^\S\r\n]?\d{1,3}|[^\S\r\n]?[^\s\w]+|[^\S\r\n]+(?=\S)|\s+|\w+"""
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes and budgets; tokens are counted after tokenisation."""

    vocab: int = 4096
    target: tuple[int, int, int, int] = (384, 10, 6, 1024)  # hidden, layers, heads, intermediate
    draft: tuple[int, int, int, int] = (192, 1, 3, 512)
    context: int = 512
    batch: int = 16
    target_tokens: int = 10_500_000
    generated_tokens: int = 1_000_000
    draft_tokens: int = 14_000_000
    draft_batch: int = 8
    large_draft: tuple[int, int, int, int] = (384, 2, 6, 1024)
    large_draft_generated: int = 600_000
    large_draft_tokens: int = 1_900_000
    large_draft_own_tokens: int = 4_000_000
    package_bytes: int = 10_000_000
    tokenizer_bytes: int = 20_000_000

    @classmethod
    def smoke(cls) -> Recipe:
        return cls(
            vocab=512, target=(64, 2, 2, 128), draft=(32, 1, 1, 64), context=64, batch=4, target_tokens=8_000,
            generated_tokens=2_000, draft_tokens=6_000, draft_batch=4,
            large_draft=(64, 2, 2, 128), large_draft_generated=2_000, large_draft_tokens=2_000,
            large_draft_own_tokens=2_000,
            package_bytes=60_000, tokenizer_bytes=200_000,
        )  # fmt: skip


def corpus_roots() -> dict[str, Path]:
    roots = {"stdlib": Path(sysconfig.get_path("stdlib"))}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots[name] = Path(next(iter(spec.submodule_search_locations)))
    return roots


def is_held_out(name: str) -> bool:
    """Split by file, by a hash of its name: the same on every machine and for every subset."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 < HELD_OUT_SHARE


def looks_written_by_hand(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) >= 10 and len(text) / len(lines) < 70 and text.count("\\x") < 50


def collect_corpus(recipe: Recipe) -> list[tuple[str, str]]:
    """Return (name, text) of readable source files, at most `package_bytes` of each package, without duplicates."""
    seen: set[bytes] = set()
    files: list[tuple[str, str]] = []
    for package, root in corpus_roots().items():
        paths = [p for p in root.rglob("*.py") if "site-packages" not in p.relative_to(root).parts]
        paths.sort(key=lambda p: hashlib.sha256(p.relative_to(root).as_posix().encode()).digest())
        taken = 0
        for path in paths:
            if taken >= recipe.package_bytes:
                break
            if not 500 <= path.stat().st_size <= 150_000:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen or not looks_written_by_hand(text):
                continue
            seen.add(digest)
            files.append((f"{package}/{path.relative_to(root).as_posix()}", text.expandtabs(4)))
            taken += len(text)
    random.Random(0).shuffle(files)
    return files


def train_tokenizer(texts: list[str], recipe: Recipe) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample, size = [], 0
    for text in texts:
        sample.append(text)
        size += len(text)
        if size > recipe.tokenizer_bytes:
            break
    tokenizer.train_from_iterator(sample, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=recipe.context
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """Token ids of all texts, each led by END -> uint16 [total]."""
    ids: list[int] = []
    for batch in (texts[i : i + 256] for i in range(0, len(texts), 256)):
        for encoding in tokenizer.backend_tokenizer.encode_batch(batch):
            ids.append(0)
            ids.extend(encoding.ids)
    return np.array(ids, dtype=np.uint16)


def build(shape: tuple[int, int, int, int], recipe: Recipe) -> LlamaForCausalLM:
    hidden, layers, heads, intermediate = shape
    config = LlamaConfig(
        vocab_size=recipe.vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=intermediate, max_position_embeddings=recipe.context,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Optimizer:
    """Muon on the matrices, AdamW on rows of tokens and norms; warm-up, constant, then linear decay to zero."""

    def __init__(self, model, *, steps: int, muon_lr: float, adam_lr: float) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and not VOCABULARY & set(n.split("."))]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or VOCABULARY & set(n.split("."))]
        self.parts = [
            torch.optim.Muon(matrices, lr=muon_lr, momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.steps, self.rates = steps, (muon_lr, adam_lr)
        self.model = model

    def step(self, index: int) -> None:
        warm = min(1.0, (index + 1) / max(1, self.steps // 40))
        decay = min(1.0, (self.steps - index) / max(1.0, 0.4 * self.steps))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * warm * decay
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load(self, states: list[dict]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def batches(ids: np.ndarray, recipe: Recipe, batch: int, seed: int):
    """Endless int64 [batch, context + 1] windows, every window once per epoch in random order."""
    count = (len(ids) - 1) // recipe.context
    epoch = 0
    queue: list[int] = []
    while True:
        while len(queue) < batch:
            order = list(range(count))
            random.Random(seed + epoch).shuffle(order)
            queue.extend(order)
            epoch += 1
        rows = [ids[i * recipe.context : (i + 1) * recipe.context + 1] for i in queue[:batch]]
        del queue[:batch]
        rows = [r for r in rows if len(r) == recipe.context + 1]
        if rows:
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


def autocast(device: str):
    return torch.autocast(device, dtype=torch.bfloat16, enabled=not FLOAT32)


@torch.inference_mode()
def held_out_loss(model, ids: np.ndarray, recipe: Recipe, device: str, windows: int = 64) -> float:
    """Mean cross-entropy (nats per token) over the first windows of the held-out ids."""
    total, seen = 0.0, 0
    for i in range(0, min(windows, (len(ids) - 1) // recipe.context)):
        x = torch.from_numpy(ids[i * recipe.context : (i + 1) * recipe.context + 1].astype(np.int64))[None].to(device)
        with autocast(device):
            logits = model(x[:, :-1], use_cache=False).logits
        total += F.cross_entropy(logits[0].float(), x[0, 1:]).item()
        seen += 1
    return total / seen


def resume(checkpoint: Path, model, optimizer: Optimizer, device: str) -> int:
    """Load what an interrupted run saved; return the step to go on with."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load(saved["optimizer"])
    return saved["step"]


def keep(checkpoint: Path, model, optimizer: Optimizer, step: int) -> None:
    """Save all that `resume` needs; the file appears whole or not at all."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state(), "step": step}
    torch.save(state, checkpoint.with_suffix(".tmp"))
    checkpoint.with_suffix(".tmp").rename(checkpoint)


def train_target(recipe: Recipe, ids: np.ndarray, held: np.ndarray, work: Path, device: str, fast: bool):
    torch.manual_seed(0)
    model = build(recipe.target, recipe).to(device)
    steps = math.ceil(recipe.target_tokens / (recipe.batch * recipe.context))
    optimizer = Optimizer(model, steps=steps, muon_lr=0.02, adam_lr=3e-3)
    checkpoint = work / "target.ckpt"
    start = resume(checkpoint, model, optimizer, device)
    forward = torch.compile(model) if fast else model
    feed = batches(ids, recipe, recipe.batch, seed=1)
    for _ in range(start):
        next(feed)
    began = last = time.perf_counter()
    for step in range(start, steps):
        x = next(feed).to(device)
        with autocast(device):
            logits = forward(x[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step(step)
        if step % 20 == 0:
            rate = (step + 1 - start) * recipe.batch * recipe.context / (time.perf_counter() - began)
            print(f"target {step}/{steps} loss {loss.item():.3f} {rate:.0f} tokens/s", flush=True)
        if time.perf_counter() - last > 240:
            last = time.perf_counter()
            keep(checkpoint, model, optimizer, step + 1)
    model.eval()
    return model, held_out_loss(model, held, recipe, device)


@torch.inference_mode()
def continued(model, ids: torch.Tensor, length: int, temperatures: torch.Tensor, generator) -> torch.Tensor:
    """Let the model continue int64 [rows, prompt] to [rows, length], each at its temperature, float32 [rows, 1]."""
    out, cache = [ids], None
    for _ in range(length - ids.shape[1]):
        result = model(out[-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        logits = result.logits[:, -1].float()
        noise = -torch.empty_like(logits).exponential_(generator=generator).log()
        out.append((logits + temperatures * noise).argmax(-1, keepdim=True))  # Gumbel-max; none at temperature 0
    return torch.cat(out, 1)


@torch.inference_mode()
def write_text(model, ids: np.ndarray, recipe: Recipe, tokens: int, work: Path, device: str) -> np.ndarray:
    """Let the target continue training prompts at temperatures 0 to 1 -> uint16 [rows, context // 2 + 1].

    Each batch is kept in `work` as it is done; an interrupted run goes on after the last one.
    """
    writer = copy.deepcopy(model).to(torch.float32 if FLOAT32 else torch.bfloat16)
    length, batch, rows = recipe.context // 2 + 1, 64, []
    prompt = length // 8
    count = math.ceil(tokens / length)
    temperatures = torch.tensor([0.0, 0.6, 1.0, 1.0], device=device).repeat(batch // 4)[:, None]
    chooser = random.Random(3)
    while len(rows) * batch < count:
        part = work / f"written-{len(rows)}.npy"
        generator = torch.Generator(device).manual_seed(2 + len(rows))
        starts = [chooser.randrange(len(ids) - prompt) for _ in range(batch)]
        if part.exists():
            rows.append(np.load(part))
            continue
        x = torch.from_numpy(np.stack([ids[s : s + prompt] for s in starts]).astype(np.int64)).to(device)
        rows.append(continued(writer, x, length, temperatures, generator).cpu().numpy().astype(np.uint16))
        np.save(part, rows[-1])
        print(f"written {len(rows) * batch}/{count} rows", flush=True)
    return np.concatenate(rows)


def new_draft(recipe: Recipe) -> LlamaForCausalLM:
    torch.manual_seed(4)
    return build(recipe.draft, recipe)


@torch.no_grad()
def grown_draft(small: LlamaForCausalLM, recipe: Recipe) -> LlamaForCausalLM:
    """Return a wider and deeper model that gives nearly the logits of `small`, to be trained on from there.

    `small` lies in the first columns and rows; what is new is random where it reads and zero where it writes to the
    residual stream, so that it adds nothing yet but has a gradient (Net2Net, Chen et al., ICLR 2016).
    """
    torch.manual_seed(7)
    draft = build(recipe.large_draft, recipe)
    width, inner = small.config.hidden_size, small.config.intermediate_size
    for layer in draft.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    first, source = draft.model.layers[0], small.model.layers[0]
    for role in ("q_proj", "k_proj", "v_proj"):  # heads keep their size, so those of `small` come first
        weight, given = getattr(first.self_attn, role).weight, getattr(source.self_attn, role).weight
        weight[: len(given)] = F.pad(given, (0, weight.shape[1] - width))
    first.self_attn.o_proj.weight[:width, : source.self_attn.o_proj.in_features] = source.self_attn.o_proj.weight
    for role in ("gate_proj", "up_proj"):
        weight = getattr(first.mlp, role).weight
        weight[:inner] = F.pad(getattr(source.mlp, role).weight, (0, weight.shape[1] - width))
    first.mlp.down_proj.weight[:width, :inner] = source.mlp.down_proj.weight
    embedding = draft.model.embed_tokens.weight
    embedding[:, width:] *= 0.1
    embedding[:, :width] = small.model.embed_tokens.weight
    scale = math.sqrt(width / draft.config.hidden_size)  # the new columns hold next to nothing: the mean square falls
    for norm, given in (
        (first.input_layernorm, source.input_layernorm),
        (first.post_attention_layernorm, source.post_attention_layernorm),
        (draft.model.norm, small.model.norm),
    ):
        norm.weight.fill_(scale)
        norm.weight[:width] = given.weight * scale
    return draft


@torch.inference_mode()
def teacher_rows(target, written: np.ndarray, work: Path) -> np.ndarray:
    """Return the target's log-probabilities along its own text, float16 [rows, length - 1, V], kept in a file.

    The file appears under its name when it is whole.
    """
    shape = (len(written), written.shape[1] - 1, target.config.vocab_size)
    path = work / f"teacher-rows-{hashlib.sha256(written.tobytes()).hexdigest()[:12]}.npy"  # of this very text
    if not path.exists():
        rows = np.lib.format.open_memmap(path.with_suffix(".tmp"), "w+", np.float16, shape)
        for start in range(0, len(written), 16):
            x = torch.from_numpy(written[start : start + 16, :-1].astype(np.int64))
            rows[start : start + 16] = target(x.to(target.device), use_cache=False).logits.log_softmax(-1).cpu()
        rows.flush()
        path.with_suffix(".tmp").rename(path)
    return np.load(path, mmap_mode="r")


def distil_draft(
    recipe: Recipe, draft, target, ids, written, held, device: str, fast: bool, *, checkpoint: Path, tokens: int,
    rates: tuple[float, float] = (0.02, 6e-3), corpus_every: int = 2, known: np.ndarray | None = None,
):  # fmt: skip
    """Minimise KL(target || draft) token by token, in turns on corpus windows and on the target's own text.

    Args:
        corpus_every: of so many steps one is on the corpus.
        known: `teacher_rows` of the own text; None computes them step by step.
    """
    draft = draft.to(device)
    step_tokens = recipe.draft_batch * recipe.context
    steps = math.ceil(tokens / step_tokens)
    optimizer = Optimizer(draft, steps=steps, muon_lr=rates[0], adam_lr=rates[1])
    start = resume(checkpoint, draft, optimizer, device)
    feed, chooser = batches(ids, recipe, recipe.draft_batch, seed=5), np.random.default_rng(6)
    student = torch.compile(draft) if fast else draft
    teacher = torch.compile(target) if fast else target
    began = last = time.perf_counter()
    for step in range(steps):
        own = step % corpus_every
        if own:
            chosen = chooser.integers(len(written), size=2 * recipe.draft_batch)
            x = torch.from_numpy(written[chosen].astype(np.int64))
        else:
            x = next(feed)
        if step < start:
            continue
        x = x[:, :-1].to(device)
        with autocast(device):
            with torch.no_grad():
                if own and known is not None:
                    wanted = torch.from_numpy(known[chosen]).to(device).float()
                else:
                    wanted = teacher(x, use_cache=False).logits.float().log_softmax(-1)
            given = student(x, use_cache=False).logits.float().log_softmax(-1)
        loss = F.kl_div(given.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)
        loss.backward()
        optimizer.step(step)
        if step % 50 < 2:
            overlap = torch.minimum(given.detach().exp(), wanted.exp()).sum(-1).mean().item()
            kind = "own text" if own else "corpus"
            rate = (step + 1 - start) * step_tokens / (time.perf_counter() - began)
            print(
                f"draft {step}/{steps} {kind} KL {loss.item():.3f} overlap {overlap:.3f} {rate:.0f} tokens/s",
                flush=True,
            )
        if time.perf_counter() - last > 240:
            last = time.perf_counter()
            keep(checkpoint, draft, optimizer, step + 1)
    if start < steps:
        keep(checkpoint, draft, optimizer, steps)
    draft.eval()
    return draft, held_out_loss(draft, held, recipe, device)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write config, bf16 safetensors without the tied copy, and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.dtype = torch.bfloat16
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    weights = {
        k: v.to(torch.bfloat16).contiguous().cpu() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)


def finish_large_draft(args, recipe: Recipe, tokenizer, target, ids, written, held, facts: dict) -> None:
    small = LlamaForCausalLM.from_pretrained(args.out / "draft", dtype=torch.float32)
    common = target, ids, written, held, args.device, args.compile
    draft, _ = distil_draft(
        recipe, grown_draft(small, recipe), *common, checkpoint=args.work / "draft-large.ckpt",
        tokens=recipe.large_draft_tokens, rates=(0.01, 2e-3),
    )  # fmt: skip
    draft, loss = distil_draft(
        recipe, draft.train(), *common, checkpoint=args.work / "draft-large-own.ckpt",
        tokens=recipe.large_draft_own_tokens, rates=(0.01, 2e-3),
        corpus_every=8, known=teacher_rows(target, written, args.work),
    )  # fmt: skip
    save_model(draft, tokenizer, args.out / "draft-large")
    facts |= {"draft_held_out_loss": loss, "written_tokens": int(written.size)}
    facts |= {"draft_parameters": sum(p.numel() for p in draft.parameters())}
    (args.out / "training-large-draft.json").write_text(json.dumps(facts, indent=2))
    print(json.dumps(facts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for intermediate results (0.5 GB; 5 for --large-draft)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder that receives target/ and draft/")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: proves that every stage runs")
    parser.add_argument(
        "--compile", action="store_true", help="torch.compile the training forward (needs a C compiler)"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--float32", action="store_true", help="no bfloat16: faster where the processor lacks it")
    parser.add_argument("--large-draft", action="store_true", help="only the second draft, for the target in --out")
    args = parser.parse_args()
    global FLOAT32
    FLOAT32 = args.float32
    recipe = Recipe.smoke() if args.smoke else Recipe()
    args.work.mkdir(parents=True, exist_ok=True)

    if not (args.work / "held_out.npy").exists():
        files = collect_corpus(recipe)
        train = [text for name, text in files if not is_held_out(name)]
        held = [text for name, text in files if is_held_out(name)] or train[:1]
        if args.large_draft:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(args.out / "target")
        else:
            tokenizer = train_tokenizer(train, recipe)
        tokenizer.save_pretrained(args.work / "tokenizer")
        names = {
            "train": [n for n, _ in files if not is_held_out(n)],
            "held_out": [n for n, _ in files if is_held_out(n)],
        }
        (args.work / "files.json").write_text(json.dumps(names))
        np.save(args.work / "train.npy", encode(tokenizer, train))
        np.save(args.work / "held_out.npy", encode(tokenizer, held))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.work / "tokenizer")
    ids, held = np.load(args.work / "train.npy"), np.load(args.work / "held_out.npy")
    names = json.loads((args.work / "files.json").read_text())
    print(f"corpus: {len(ids):,} training tokens, {len(held):,} held out", flush=True)
    facts = {"recipe": asdict(recipe), "train_tokens": len(ids), "held_out_tokens": len(held)}
    facts |= {"train_files": len(names["train"]), "held_out_files": len(names["held_out"])}

    done = args.work / "target.json"
    if not done.exists() and not args.large_draft:
        target, loss = train_target(recipe, ids, held, args.work, args.device, args.compile)
        save_model(target, tokenizer, args.out / "target")
        done.write_text(json.dumps({"target_held_out_loss": loss}))
    target = LlamaForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32).to(args.device).eval()

    written_tokens = recipe.large_draft_generated if args.large_draft else recipe.generated_tokens
    if not (args.work / "written.npy").exists():
        np.save(args.work / "written.npy", write_text(target, ids, recipe, written_tokens, args.work, args.device))
    written = np.load(args.work / "written.npy")

    if args.large_draft:
        finish_large_draft(args, recipe, tokenizer, target, ids, written, held, facts)
        return
    draft, draft_loss = distil_draft(
        recipe, new_draft(recipe), target, ids, written, held, args.device, args.compile,
        checkpoint=args.work / "draft.ckpt", tokens=recipe.draft_tokens,
    )  # fmt: skip
    save_model(draft, tokenizer, args.out / "draft")
    facts |= json.loads(done.read_text()) | {"draft_held_out_loss": draft_loss, "written_tokens": int(written.size)}
    facts |= {"target_parameters": sum(p.numel() for p in target.parameters())}
    facts |= {"draft_parameters": sum(p.numel() for p in draft.parameters())}
    (args.out / "training.json").write_text(json.dumps(facts, indent=2))
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
