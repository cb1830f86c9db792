"""Whether a draft head guesses text better when it is fed otherwise than its files say. n = tokens, H = hidden size."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ..models.heads.eagle3 import Eagle3Head
from ..models.heads.session import HeadModel
from ..models.language_model import ModelPair
from ..models.protocol import causal_mask
from ..native.threads import use_free_cores

TEXTS, TOKENS = 32, 256  # that are read, and of each text
FEWEST = 8  # texts, for an error
DEVIATIONS, MIN_GAIN = 4.0, 0.01  # of the gain's error; nats a token
NORM_OUTPUT = "the other norm_output"


class OtherWiring(NamedTuple):
    """What fits better than what a head's files say: its loss with that and as filed, in nats a token."""

    what: str
    nats: float
    as_filed: float

    def __str__(self) -> str:
        return (
            f"Wired wrong: with {self.what}, the head loses {self.nats:.2f} nats a token along these prompts instead "
            f"of {self.as_filed:.2f}. Check its config against the program that trained it."
        )


@torch.inference_mode()
def better_wiring(texts: Sequence[Sequence[int]], pair: ModelPair) -> OtherWiring | None:
    """Return the wiring that fits best where one fits better than a head's own, by more than chance between texts.

    The head reads the target's true states along each text, and at a second depth its own outputs.
    """
    head = pair.draft
    if not isinstance(head, HeadModel) or not isinstance(head.head, Eagle3Head):
        return None
    losses: dict[str, list[np.ndarray]] = {}
    for text in [text[:TOKENS] for text in texts if len(text) > 3][:TEXTS]:
        for what, loss in _losses(torch.tensor(text), head):
            losses.setdefault(what, []).append(loss)
    found = []
    for what, rows in losses.items() if len(losses.get("", ())) >= FEWEST else ():
        own, other = np.array(losses[""]), np.array(rows)
        depth, tokens = int(what == NORM_OUTPUT), own[:, 2]  # that one changes only what is fed back
        gains = own[:, depth] - other[:, depth]
        gain = gains.sum() / tokens.sum()
        error = math.sqrt(((gains - gain * tokens) ** 2).sum()) / tokens.sum()
        if gain > max(MIN_GAIN, DEVIATIONS * error):
            found.append(OtherWiring(what, other[:, depth].sum() / tokens.sum(), own[:, depth].sum() / tokens.sum()))
    return max(found, key=lambda other: other.as_filed - other.nats, default=None)


def _losses(ids: torch.Tensor, model: HeadModel) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each way to wire a head and its loss, see `better_wiring`; the first one, "", is its own."""
    head, layers = model.head, int(model.target.model.config.get_text_config().num_hidden_layers)
    assert isinstance(head, Eagle3Head), "others have no other wiring"
    settings = head.settings
    own = _states(ids, model, model.reads)
    yield "", _loss(ids, head, own, model)
    for norms in ("norm_before_residual", "norm_output"):
        other = _changed(head, **{norms: not getattr(settings, norms)})
        yield f"the other {norms}", _loss(ids, other, own, model)
    yield "each token's states given one token earlier", _loss(ids, head, torch.cat([own[1:], own[-1:]]), model)
    yield "each token's states given one token later", _loss(ids, head, torch.cat([own[:1], own[:-1]]), model)
    for step, where in ((1, "above"), (-1, "below")):
        reads = tuple(number + step for number in model.reads)
        if min(reads) >= 0 and max(reads) <= layers:
            numbers = ", ".join(map(str, reads))
            yield f"the states {where}, {numbers}", _loss(ids, head, _states(ids, model, reads), model)


def _states(ids: torch.Tensor, model: HeadModel, reads: Sequence[int]) -> torch.Tensor:
    """Return the target's states along a text, [n, k · H]."""
    session = model.target.open(len(ids), reads)
    with use_free_cores():
        session.forward(ids, torch.arange(len(ids)), causal_mask(len(ids)), keep=1)
    assert session.states is not None, "it was opened for some"
    return session.states.flatten(1).to(model.device, model.dtype)


def _changed(head: Eagle3Head, **fields: Any) -> Eagle3Head:
    """Return a head with the same weights and other settings."""
    other, layers = copy.copy(head), list[Any](head.layers)
    layers[0] = copy.copy(layers[0])
    other.settings = replace(head.settings, **fields)
    layers[0].norm_before_residual = other.settings.norm_before_residual
    other._modules = dict(head._modules)  # its own, shared with `head` so far
    other.layers = torch.nn.ModuleList(layers)
    return other


def _loss(ids: torch.Tensor, head: Eagle3Head, states: torch.Tensor, model: HeadModel) -> np.ndarray:
    """Return how much the head loses on a text: sums in nats at depth 1 and 2, and how many, float64 [3]."""
    count = len(ids) - 1
    mask = causal_mask(count)
    mask[1:, 0] = -torch.inf  # the first token has no feature
    places, mask = torch.arange(count, device=model.device), mask.to(model.device, model.dtype)
    features, embeddings = F.pad(head.project(states[: count - 1]), (0, 0, 1, 0)), head.embed(ids[:-1].to(model.device))
    sums, wanted = [], ids[3:].to(model.device)
    for _ in range(2):
        output = head(embeddings, features, places, mask)
        logs = model.rows(output)[2:].log_softmax(-1).gather(1, wanted[:, None])
        sums.append(logs[logs.isfinite()].double())
        features = F.pad(head.feedback(output)[:-1], (0, 0, 1, 0))
    return np.array([-float(sums[0].sum()), -float(sums[1].sum()), len(sums[0])])
