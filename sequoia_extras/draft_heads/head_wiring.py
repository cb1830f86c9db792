"""Checks whether a draft head predicts text better with inputs that differ from those its files specify."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.threads import use_free_cores

from .blocks import DFlashHead, read_blocks
from .eagle3 import Eagle3Head
from .session import HeadModel

MAX_TEXTS = 32
TOKENS_PER_TEXT = 256
# An error estimate needs at least this many texts.
MIN_TEXTS = 8
# A gain must exceed both this many standard errors and this many nats per token.
MIN_STANDARD_ERRORS = 4.0
MIN_GAIN = 0.01
AS_FILED = ""
NORM_OUTPUT = "norm_output"


class BetterWiring(NamedTuple):
    """A wiring that fits better than the one in a head's files, and the losses of both in nats per token."""

    wiring: str
    nats: float
    as_filed: float

    def __str__(self) -> str:
        return (
            f"Wired wrong: with {self.wiring}, the head's loss on these prompts is {self.nats:.2f} nats per token "
            f"instead of {self.as_filed:.2f}. Check its config against the program that trained it."
        )


@torch.inference_mode()
def find_better_wiring(texts: Sequence[Sequence[int]], pair: ModelPair) -> BetterWiring | None:
    """Return the best wiring if it beats the one in the head's files by more than the variation between texts.

    At depth 1, the head reads the target's states for each token of a text; at depth 2, it reads its own outputs. Heads
    that draft blocks are compared at depth 1 only.
    """
    head = pair.draft
    if not isinstance(head, HeadModel) or not isinstance(head.head, Eagle3Head):
        return None
    losses: dict[str, list[np.ndarray]] = {}
    for text in [text[:TOKENS_PER_TEXT] for text in texts if len(text) > 3][:MAX_TEXTS]:
        for wiring, loss in _losses(torch.tensor(text), head):
            losses.setdefault(wiring, []).append(loss)
    filed_rows = losses.pop(AS_FILED, [])
    if len(filed_rows) < MIN_TEXTS:
        return None
    filed = np.array(filed_rows)
    tokens = filed[:, 2]
    better = []
    for wiring, rows in losses.items():
        # This norm changes only the outputs that are fed back, which are read at depth 2.
        depth = int(wiring.endswith(NORM_OUTPUT))
        other = np.array(rows)
        gains = filed[:, depth] - other[:, depth]
        gain = gains.sum() / tokens.sum()
        error = math.sqrt(((gains - gain * tokens) ** 2).sum()) / tokens.sum()
        if gain > max(MIN_GAIN, MIN_STANDARD_ERRORS * error):
            nats, as_filed = (sums[:, depth].sum() / tokens.sum() for sums in (other, filed))
            better.append(BetterWiring(wiring, nats, as_filed))
    return max(better, key=lambda wiring: wiring.as_filed - wiring.nats, default=None)


def _losses(ids: Tensor, model: HeadModel) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each wiring and its loss on a text (see `_loss`), starting with the one in the head's files, `AS_FILED`."""
    head = model.head
    layers = int(model.target.model.config.get_text_config().num_hidden_layers)
    assert isinstance(head, Eagle3Head), "checked by `find_better_wiring`"
    block = head.settings.block
    states = _target_states(ids, model, model.state_indices)
    loss: Any = _block_loss if isinstance(head, DFlashHead) else _loss
    yield AS_FILED, loss(ids, head, states, model)
    if block is None or not isinstance(head, DFlashHead):
        # A P-EAGLE head does not feed outputs back.
        for norm in ("norm_before_residual", NORM_OUTPUT)[: 2 if block is None else 1]:
            other = with_settings(head, **{norm: not getattr(head.settings, norm)})
            yield f"the opposite {norm}", loss(ids, other, states, model)
    else:
        other = with_settings(head, block=replace(block, first_row=1 - block.first_row))
        yield "the opposite sample_from_anchor", loss(ids, other, states, model)
        yield "each block one position earlier", loss(ids, head, states, model, -1)
        yield "each block one position later", loss(ids, head, states, model, 1)
    yield "each token's states given one token earlier", loss(ids, head, torch.cat([states[1:], states[-1:]]), model)
    yield "each token's states given one token later", loss(ids, head, torch.cat([states[:1], states[:-1]]), model)
    for step, where in ((1, "above"), (-1, "below")):
        indices = tuple(index + step for index in model.state_indices)
        if min(indices) >= 0 and max(indices) <= layers:
            wiring = f"the states one layer {where} ({', '.join(map(str, indices))})"
            yield wiring, loss(ids, head, _target_states(ids, model, indices), model)


def _target_states(ids: Tensor, model: HeadModel, indices: Sequence[int]) -> Tensor:
    """Return the target's concatenated states for each token of a text, [tokens, states · hidden size]."""
    session = model.target.open(len(ids), indices)
    with use_free_cores():
        session.forward(ids, torch.arange(len(ids)), causal_mask(len(ids)), keep=1)
    assert session.states is not None, "requested in `open`"
    return session.states.flatten(1).to(model.device, model.dtype)


def with_settings(head: Eagle3Head, **fields: Any) -> Eagle3Head:
    """Return a head with the same weights but some changed settings."""
    other = copy.copy(head)
    other.settings = replace(head.settings, **fields)
    layers = list[Any](head.layers)
    layers[0] = copy.copy(layers[0])
    layers[0].norm_before_residual = other.settings.norm_before_residual
    # The shallow copy shares this dictionary with `head`.
    other._modules = dict(head._modules)
    other.layers = torch.nn.ModuleList(layers)
    return other


def _loss(ids: Tensor, head: Eagle3Head, states: Tensor, model: HeadModel) -> np.ndarray:
    """Return a head's loss on a text, float64 [3]: its sums at depths 1 and 2 in nats, and the number of tokens."""
    count = len(ids) - 1
    mask = causal_mask(count)
    # The first token has no feature, so no other token attends to it.
    mask[1:, 0] = -torch.inf
    mask = mask.to(model.device, model.dtype)
    positions = torch.arange(count, device=model.device)
    features = F.pad(head.project(states[: count - 1]), (0, 0, 1, 0))
    embeddings = head.embed(ids[:-1].to(model.device))
    wanted = ids[3:, None].to(model.device)
    sums = []
    for _ in range(2):
        output = head(embeddings, features, positions, mask)
        log_probs = model.target_logits(output)[2:].log_softmax(-1).gather(1, wanted)
        finite = log_probs[log_probs.isfinite()].double()
        sums.append(-float(finite.sum()))
        if len(sums) == 1:
            tokens = len(finite)
        features = F.pad(head.feedback(output)[:-1], (0, 0, 1, 0))
    return np.array([*sums, tokens])


def _block_loss(ids: Tensor, head: DFlashHead, states: Tensor, model: HeadModel, shift: int = 0) -> np.ndarray:
    """Return what `_loss` does for a DFlash head; `shift` is added to the positions of its blocks."""
    block = head.settings.block
    assert block is not None, "DFlash heads have blocks"
    # Fewer blocks of a text cost about as much as reading the text once.
    anchors = torch.arange(1, len(ids) - 1, max(1, block.size // 2), device=model.device)
    ids = ids.to(model.device)
    outputs = read_blocks(head, ids, head.project(states), anchors, shift)[:, block.first_row]
    log_probs = model.target_logits(outputs).log_softmax(-1).gather(1, ids[anchors + 1, None])
    finite = log_probs[log_probs.isfinite()].double()
    return np.array([-float(finite.sum()), 0.0, len(finite)])
