"""Random draft heads, as files in each format and as models, and their outputs without a cache."""

import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from sequoia_core.models.model_files import locate
from sequoia_extras.draft_heads.blocks import head_class, read_blocks
from sequoia_extras.draft_heads.head_config import head_settings
from sequoia_extras.draft_heads.head_files import find_head, read_head
from sequoia_extras.draft_heads.session import HeadModel

PUBLISHED = "published"
SPECULATORS = "speculators"
DFLASH = "dflash"  # as first published
MASK = 5


def head_fields(target, form=PUBLISHED, *, draft_vocab=None, reads=None, layers=1, layer=(), **fields):
    """Return the config.json of a head for a target; `layer` and `fields` override entries.

    In the form of `speculators`, the field `speculators_model_type` chooses an EAGLE-3, DFlash or P-EAGLE head.
    """
    config = target.config
    own = {
        "model_type": "llama", "hidden_size": config.hidden_size, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": layers, "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
        "vocab_size": config.vocab_size, "rope_theta": 10_000.0, "architectures": ["LlamaForCausalLMEagle3"],
        **dict(layer),
    }  # fmt: skip
    draft_vocab, layers = draft_vocab or config.vocab_size, config.num_hidden_layers
    mask = min(MASK, config.vocab_size - 1)
    if form == DFLASH:
        options = {"mask_token_id": mask} | ({} if reads is None else {"target_layer_ids": [i - 1 for i in reads]})
        own |= {
            "model_type": "qwen3",
            "head_dim": 8,
            "architectures": ["DFlashDraftModel"],
            "num_target_layers": layers,
        }
        return own | {"block_size": 4, "dflash_config": options} | fields
    if form == PUBLISHED:
        if reads is not None:
            own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [number - 1 for number in reads]}
        return own | {"draft_vocab_size": draft_vocab} | fields
    kind = fields.get("speculators_model_type")
    if kind == "dflash":
        own |= {"model_type": "qwen3", "head_dim": 8}
        fields = {"block_size": 4, "mask_token_id": mask} | fields
        fields["aux_hidden_state_layer_ids"] = list(reads or (2, layers // 2))
    elif kind == "peagle":
        fields = {"mask_token_id": mask} | fields
    return {
        "speculators_model_type": "eagle3", "speculators_version": "0.3.0", "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": {**own, "architectures": None}, "draft_vocab_size": draft_vocab,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(reads or (2, layers // 2, layers - 3)),
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}],
            "verifier": {"name_or_path": None, "architectures": ["LlamaForCausalLM"]},
        },
    } | fields  # fmt: skip


def head_tensors(fields, *, seed=0, scale=1.0, embeddings=False):
    """Return a random head's tensors, named as in its format."""
    generator = torch.Generator().manual_seed(seed)
    settings = head_settings(fields)
    shape = torch.empty(settings.vocab, settings.hidden)
    shares = fields.get("dflash_config") or fields.get("speculators_model_type") == "dflash"
    output = shape if shares and settings.draft_vocab == settings.vocab else None
    with torch.device("meta"):
        head = head_class(settings)(settings, None if embeddings and not shares else shape, output)
    tensors = {}
    for name, empty in head.state_dict().items():
        drawn = torch.randn(empty.shape, generator=generator)
        tensors[name] = 1 + 0.1 * drawn if empty.dim() == 1 else scale * drawn / empty.shape[1] ** 0.5
    if "transformer_layer_config" not in fields and not shares:
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    if settings.draft_vocab < settings.vocab:
        kept = torch.randperm(settings.vocab, generator=generator)[: settings.draft_vocab].sort().values
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(settings.vocab, dtype=torch.bool)
        tensors["t2d"][kept] = True
    return tensors


def write_head(folder, fields, tensors, *, pickled=False):
    """Write a head's folder and return it."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(fields))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def load_head(folder, target):
    """Load the head in a folder for a target of transformers."""
    return read_head(find_head(locate(folder)), target)


def random_head(target, *, seed=0, scale=1.0, reads=(1, 0), form=SPECULATORS, **fields):
    """Return a random head for a loaded model."""
    with tempfile.TemporaryDirectory() as folder:
        own = head_fields(target.model, form, reads=reads, **fields)
        head = load_head(write_head(folder, own, head_tensors(own, seed=seed, scale=scale)), target.model)
    return HeadModel(head, f"head-{seed}", target)


def states_along(model, texts):
    """Return the target's hidden states that a head reads, for texts [.., n]: [.., n, states · H]."""
    ids = torch.tensor(texts)
    with torch.inference_mode():
        batch = ids.reshape(-1, ids.shape[-1])
        found = model.target.model(batch, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([found[number] for number in model.state_indices], -1).reshape(*ids.shape, -1).clone()


@torch.inference_mode()
def plain_row(model, text, true):
    """Return a head's logits [V] after a text without a cache; the first `true` tokens have target features."""
    head, count = model.head, len(text)
    mask = torch.full((count, count), -torch.inf).triu(1)
    mask[1:, 0] = -torch.inf  # the first token has no feature
    features = F.pad(head.project(states_along(model, text[: true - 1])), (0, 0, 1, 0)) if true > 1 else None
    features = torch.zeros(1, head.settings.hidden) if features is None else features
    while True:
        read = len(features)
        output = head(head.embed(torch.tensor(text[:read])), features, torch.arange(read), mask[:read, :read])
        if read == count:
            return model.target_logits(output)[-1]
        features = torch.cat([features, head.feedback(output[-1:])])


def teach(model, texts, steps=150):
    """Train a head on texts of its target, [m, n], at depth 1 and, from its own outputs, at depth 2."""
    head, ids = model.head.requires_grad_(True), torch.tensor(texts)
    best, settings = torch.optim.Adam(head.parameters(), lr=5e-3), model.head.settings
    own = torch.full((settings.vocab,), -1)
    known = torch.arange(settings.vocab) if head.tokens is None else head.tokens
    own[known] = torch.arange(len(known))
    count = ids.shape[1] - 2
    states = states_along(model, texts)[:, :-2]
    mask = torch.full((count, count), -torch.inf).triu(1)
    places = torch.arange(count)
    for _ in range(steps):
        loss = 0.0
        features = head.project(states)
        for _ in range(2):
            output = head(head.embed(ids[:, 1:-1]), features, places, mask)
            loss = loss + F.cross_entropy(head.logits(output).flatten(0, 1), own[ids[:, 2:]].flatten(), ignore_index=-1)
            features = torch.cat([features[:, :1], head.feedback(output)[:, :-1]], 1)
        best.zero_grad()
        loss.backward()
        best.step()
    head.requires_grad_(False)
    return model


def teach_blocks(model, texts, steps=100, shift=0):
    """Train a DFlash head on texts of its target, [m, n], at every depth of blocks at all positions."""
    head, ids = model.head.requires_grad_(True), torch.tensor(texts)
    best, block = torch.optim.Adam(head.parameters(), lr=5e-3), model.head.settings.block
    states = states_along(model, texts)
    anchors = torch.arange(ids.shape[1] - block.rows)
    wanted = ids.unfold(1, block.rows, 1)[:, 1:]
    for _ in range(steps):
        outputs = read_blocks(head, ids, head.project(states), anchors, shift)[:, :, block.first_row :]
        best.zero_grad()
        F.cross_entropy(head.logits(outputs).flatten(0, 2), wanted.flatten()).backward()
        best.step()
    head.requires_grad_(False)
    return model
