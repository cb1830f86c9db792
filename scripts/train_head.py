"""Train an EAGLE-3 head for a target, on text that the target wrote, and write it as first published.

    python scripts/train_head.py --target assets/demo/target --out assets/demo/head --vocabulary 3072 --minutes 60

First the target continues prompts from the demo pair's training files (none held out) at temperatures 0, 0.6 and 1,
and a pass over each text keeps the hidden states that the head reads, and the last (a quarter of an hour for the demo
target on two cores). Then, for `--minutes`, the head learns the target's probabilities within a draft vocabulary, the
tokens most frequent in these texts, fed with its own outputs for three steps (training-time test: Li et al., EAGLE-3,
2025). All is kept in `--work`: the same command goes on where it stopped, and `--out` holds what was trained so far.
The learning rate follows the share of `--minutes` that is over.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from pathlib import Path

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from train_demo_pair import Optimizer, Recipe, collect_corpus, continued, is_held_out, keep, resume
from transformers import AutoModelForCausalLM, AutoTokenizer

from sequoia_core.models.heads.eagle3 import Eagle3Head
from sequoia_core.models.heads.head_config import head_settings

PROMPT, LENGTH = 48, 256  # tokens of a text's prompt, and in all
JOINED = 4  # of so many files one holds texts of twice the length, two in one, for longer contexts
STEPS, DECAY = 3, 0.8  # passes of the head in training; what the loss of each weighs, of the one before
TICKS = 10_000  # of the learning rate's schedule
SAVE_SEC = 60
RATES = (0.02, 1e-3)  # Muon's, AdamW's


def prompts(tokenizer, texts: list[str], count: int, chooser: random.Random) -> torch.Tensor:
    """Choose beginnings of lines, each file as often as it is long -> [count, PROMPT]."""
    rows: list[list[int]] = []
    lengths = [len(text) for text in texts]
    while len(rows) < count:
        (text,) = chooser.choices(texts, lengths)
        begin = text.rfind("\n", 0, chooser.randrange(len(text))) + 1
        ids = tokenizer.encode(text[begin : begin + 12 * PROMPT])[:PROMPT]
        if len(ids) == PROMPT:
            rows.append(ids)
    return torch.tensor(rows)


@torch.inference_mode()
def write(model, tokenizer, texts: list[str], count: int, reads: list[int], path: Path, index: int, batch: int) -> None:
    """Let the target write texts, read them again, and keep what training needs.

    ids: int32 [R, L]; states: bfloat16 [R, L, 4, H], the three that the head reads and the last; log_total: float32
    [R, L], the logarithm of the sum of all exponentials.
    """
    begun = prompts(tokenizer, texts, count, random.Random(index))
    generator = torch.Generator(model.device).manual_seed(index)
    temperatures = torch.tensor([0.0, 0.6, 1.0, 1.0], device=model.device).repeat(count // 4)[:, None]
    ids = continued(model, begun.to(model.device), LENGTH, temperatures, generator)
    ids = ids.view(-1, 2 * LENGTH) if index % JOINED == JOINED - 1 else ids
    output, kept, totals = model.get_output_embeddings().weight, [], []
    for rows in ids.split(max(1, batch // ids.shape[1])):
        states = model.base_model(rows, use_cache=False, output_hidden_states=True).hidden_states
        kept.append(torch.stack([*(states[place] for place in reads), states[-1]], 2).to(torch.bfloat16))
        totals += [(row @ output.T).float().logsumexp(-1) for row in states[-1]]
    found, expected = states[-1][-1, -1] @ output.T, model(rows[-1:], logits_to_keep=1).logits[0, -1]
    if not torch.allclose(found.float().softmax(-1), expected.float().softmax(-1), atol=0.02):
        raise SystemExit("found logits that the last state and the output layer do not give, expected plain ones")
    tensors = {"ids": ids.int(), "states": torch.cat(kept), "log_total": torch.stack(totals)}
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)


def draft_vocabulary(files: list[Path], size: int, vocabulary: int, always: list[int]) -> torch.Tensor:
    """Return the tokens most frequent in the texts, ascending, and those of `always` -> int64 [size]."""
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    for file in files:
        with safe_open(file, "pt") as texts:
            counts += texts.get_tensor("ids").long().flatten().bincount(minlength=vocabulary)
    covered = counts.sort(descending=True).values[:size].sum() / counts.sum()
    print(f"draft vocabulary: {size} of {vocabulary} tokens, {covered:.2%} of the texts", flush=True)
    counts[always] = counts.max() + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def head_config(target, vocabulary: int, inner: int, reads: list[int]) -> dict:
    """Return the config.json of a head with the target's sizes."""
    config = target.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": config.hidden_size,
        "intermediate_size": inner, "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "num_hidden_layers": 1,
        "hidden_act": "silu", "rms_norm_eps": config.rms_norm_eps, "rope_theta": 10_000.0,
        "max_position_embeddings": min(config.max_position_embeddings, 4096), "vocab_size": config.vocab_size,
        "draft_vocab_size": vocabulary, "tie_word_embeddings": False, "dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [place - 1 for place in reads], "use_aux_hidden_state": True
        },
    }  # fmt: skip


@torch.no_grad()
def new_head(settings, target, tokens: torch.Tensor, last_scale: torch.Tensor) -> Eagle3Head:
    """Begin with the target's output layer for the draft vocabulary, and a layer that adds nothing yet."""
    torch.manual_seed(0)
    head = Eagle3Head(settings, embedding=target.get_input_embeddings().weight.float()).float().to(target.device)
    head.tokens = tokens
    head.layers[0].self_attn.o_proj.weight.zero_()
    head.layers[0].mlp["down_proj"].weight.zero_()
    head.norm.weight.copy_(last_scale)
    head.lm_head.weight.copy_(target.get_output_embeddings().weight[tokens])
    return head


def losses(head: Eagle3Head, output: torch.Tensor, scale: torch.Tensor, batch: dict[str, torch.Tensor]):
    """Yield of each step the mean cross-entropy, the head's log-probabilities, and the target's probabilities.

    A text is read from all its positions at once: a later step sees what the first one read up to there, and of the
    other steps only what it read itself. The target's are of the whole vocabulary: their sum may be below 1.

    Args:
        output: [draft vocabulary, H], the target's output layer.
        scale: [3 · H], of the states that the head reads.
    """
    ids, states = batch["ids"].long(), batch["states"].float()
    count = ids.shape[1] - STEPS
    feature = head.project(states[:, :count, :3].flatten(2) / scale)
    causal, own = torch.ones(2, count, count, dtype=torch.bool, device=ids.device)
    causal, own, places = causal.tril(), own.tril().triu(), torch.arange(count, device=ids.device)
    past: list[list[torch.Tensor]] = [[], []]

    def seen(_, *new: torch.Tensor):
        for held, part in zip(past, new, strict=True):
            held.append(part)
        return torch.cat(past[0], -2), torch.cat(past[1], -2)

    for step in range(STEPS):
        read = slice(1 + step, 1 + step + count)
        mask = torch.cat([causal] + step * [own], 1)
        result = head(head.embed(ids[:, read]), feature, places + step, mask, seen)
        given = head.logits(result).float().log_softmax(-1)
        with torch.no_grad():
            logits = (batch["states"][:, read, 3].to(output.dtype) @ output.T).float()
            wanted = (logits - batch["log_total"][:, read, None]).exp()
        yield -(wanted * given).sum(-1).mean() / wanted.sum(-1).mean(), given, wanted
        feature = head.feedback(result)


@torch.no_grad()
def save(head: Eagle3Head, config: dict, scale: torch.Tensor, folder: Path, facts: dict) -> None:
    """Write the head as first published; the states' scale goes into `fc`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in head.state_dict().items()}
    tensors["fc.weight"] = tensors["fc.weight"] / scale
    tensors = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    tokens = head.tokens.cpu()
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, tokens, True)
    save_file(tensors, folder / "model.tmp", metadata={"format": "pt"})
    (folder / "model.tmp").rename(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def batches(files: list[Path], tokens: int, device: str, seed: int):
    """Endless batches of about so many tokens, each text once per epoch in random order of batches."""
    chunks = []
    for file in files:
        with safe_open(file, "pt") as texts:
            rows, length = texts.get_slice("ids").get_shape()
        size = max(1, tokens // length)
        chunks += [(file, begin, begin + size) for begin in range(0, rows, size)]
    chooser = random.Random(seed)
    while True:
        for file, begin, end in chooser.sample(chunks, len(chunks)):
            with safe_open(file, "pt") as texts:
                yield {name: texts.get_slice(name)[begin:end].to(device) for name in ("ids", "states", "log_total")}


def train(head, output, scale, files: list[Path], args, finished) -> None:
    """Train for what is left of the time; call `finished` with the numbers to show, now and then and at the end."""
    state = args.work / "state.json"
    spent = json.loads(state.read_text())["spent"] if state.exists() else 0.0
    optimizer, checkpoint = Optimizer(head, steps=TICKS, muon_lr=RATES[0], adam_lr=RATES[1]), args.work / "head.ckpt"
    start = resume(checkpoint, head, optimizer, args.device)
    feed = batches(files[1:], args.batch, args.device, seed=1)
    held = next(batches(files[:1], args.batch, args.device, seed=0))  # texts that no step sees
    for _ in range(start):
        next(feed)
    limit, began, last = 60 * args.minutes, time.monotonic() - spent, time.monotonic()
    for step, batch in enumerate(feed, start):
        share = (time.monotonic() - began) / limit
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=not args.float32):
            parts = [loss for loss, *_ in losses(head, output, scale, batch)]
        sum(DECAY**place * part for place, part in enumerate(parts)).backward()
        optimizer.step(min(TICKS - 1, int(share * TICKS)))
        if step % 20 == 0:
            shown = " ".join(f"{part.item():.3f}" for part in parts)
            print(f"step {step} {min(1, share):.1%} loss {shown}", flush=True)
        over = share >= 1 or step + 1 == args.steps
        if over or time.monotonic() - last > SAVE_SEC:
            last = time.monotonic()
            keep(checkpoint, head, optimizer, step + 1)
            state.write_text(json.dumps({"spent": last - began}))
            with torch.no_grad(), torch.autocast(args.device, dtype=torch.bfloat16, enabled=not args.float32):
                found = [torch.minimum(given.exp(), wanted) for _, given, wanted in losses(head, output, scale, held)]
            accepted = [part.sum(-1).mean().item() for part in found]
            print("accepted at T = 1, unseen texts:", *map("{:.3f}".format, accepted), flush=True)
            finished({"steps": step + 1, "share": min(1, share), "accepted": accepted})
        if over:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="folder that receives the head")
    parser.add_argument("--work", type=Path, help="folder for intermediate results; default: beside --out")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the head can propose")
    parser.add_argument("--inner", type=int, help="inner size of its layer; default: the target's")
    parser.add_argument("--minutes", type=float, default=45, help="time for training, after the texts are written")
    parser.add_argument("--files", type=int, default=24, help="files of texts that are written, at least 2")
    parser.add_argument("--rows", type=int, default=64, help="texts of a file, a multiple of 8")
    parser.add_argument("--batch", type=int, default=2048, help="tokens of a step")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--steps", type=int, help="stop training after so many steps")
    parser.add_argument("--float32", action="store_true", help="no bfloat16: faster where the processor lacks it")
    args = parser.parse_args()
    args.work = args.work or args.out.with_name(args.out.name + "-work")
    args.work.mkdir(parents=True, exist_ok=True)

    target = (
        AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32 if args.float32 else torch.bfloat16)
        .eval()
        .requires_grad_(False)
        .to(args.device)
    )
    tokenizer, layers = AutoTokenizer.from_pretrained(args.target), target.config.num_hidden_layers
    if layers < 5:
        raise SystemExit(f"{args.target}: found {layers} layers, expected at least 5")
    reads = [2, layers // 2, layers - 3]
    files = [args.work / f"texts-{index:04}.safetensors" for index in range(max(2, args.files))]
    missing = [index for index, path in enumerate(files) if not path.exists()]
    texts = [text for name, text in collect_corpus(Recipe()) if not is_held_out(name)] if missing else []
    for index in missing:
        write(target, tokenizer, texts, args.rows, reads, files[index], index, args.batch)
        print(f"written {(index + 1) * args.rows * LENGTH:,} tokens", flush=True)

    size, ends = min(args.vocabulary, target.config.vocab_size), target.generation_config.eos_token_id
    always = [ends] if isinstance(ends, int) else list(ends or [])
    tokens = draft_vocabulary(files, size, target.config.vocab_size, always)
    config = head_config(target, size, args.inner or target.config.intermediate_size, reads)
    with safe_open(files[0], "pt") as first:
        scale = first.get_tensor("states").float().square().mean((0, 1)).sqrt().clamp_min(1e-6)
    settings = replace(head_settings(config), reads=tuple(reads))
    tokens, scale = tokens.to(args.device), scale.to(args.device)
    head = new_head(settings, target, tokens, scale[3])
    facts = {
        "target": Path(args.target).name,
        "written_tokens": len(files) * args.rows * LENGTH,
        "minutes": args.minutes,
    }
    facts |= {"parameters": sum(p.numel() for p in head.parameters())}
    flat, output = scale[:3].flatten(), target.get_output_embeddings().weight[tokens]
    train(head, output, flat, files, args, lambda found: save(head, config, flat, args.out, facts | found))


if __name__ == "__main__":
    main()
