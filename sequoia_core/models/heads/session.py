"""A draft head as the engine sees it, and its session, which drafts from the target's states. n = tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ...native import linear
from ..protocol import LanguageModel, causal_mask, parents_of
from ..tree_cache import CacheSession
from .compiled_head import CompiledHead, CompiledHeadSession
from .eagle3 import Eagle3Head
from .features import GivenFeatures

if TYPE_CHECKING:
    from ..language_model import HuggingFaceModel
    from .mtp import MtpHead


class HeadModel(LanguageModel):
    """A draft head beside its target (see `protocol.LanguageModel` for the attributes).

    Args:
        head: on the target's device and in its dtype.
    """

    dtype: torch.dtype

    def __init__(self, head: Eagle3Head | MtpHead, name: str, target: HuggingFaceModel) -> None:
        self.head, self.name, self.target = head.eval(), name, target
        settings = head.settings
        assert settings.reads is not None, "reading a head for a target settles them"
        self.reads, self.max_context = settings.reads, settings.context
        self.vocab_size, self.eos_ids, self.dtype = target.vocab_size, target.eos_ids, target.model.dtype
        self.device, self.parameters = target.device, sum(weights.numel() for weights in head.parameters())
        linear.compile_layers(head)
        self._compiled: CompiledHead | None = None
        if isinstance(head, Eagle3Head) and CompiledHead.supports(head):
            self._compiled = CompiledHead(head)

    @property
    def kind(self) -> str:
        return self.head.settings.form

    @property
    def backend(self) -> str:
        numbers = ", ".join(map(str, self.reads))
        compiled = self._compiled
        how = linear.description(self.head) if compiled is None else compiled.description
        return ", ".join(filter(None, [f"{self.kind} head of states {numbers}", how]))

    def open(self, capacity: int, states: Sequence[int] = ()) -> HeadSession | CompiledHeadSession:
        if self._compiled is None:
            return HeadSession(self, capacity)
        return CompiledHeadSession(self._compiled, capacity, self.vocab_size)

    def rows(self, output: torch.Tensor) -> torch.Tensor:
        """Return logits of an output [n, H] over the target's tokens, float32 [n, V]; -inf where it has none."""
        logits = self.head.logits(output).float()
        tokens = self.head.tokens
        if tokens is None:
            return logits[:, : self.vocab_size]
        rows = logits.new_full((len(logits), self.head.settings.vocab), -torch.inf)
        return rows.index_copy_(1, tokens, logits)[:, : self.vocab_size]

    @torch.inference_mode()
    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of a text, float32 [tokens, V], that the target reads first, without a cache."""
        count, mask = len(ids), causal_mask(len(ids))
        session = self.target.open(count, self.reads)
        session.forward(ids, torch.arange(count), mask, keep=1)
        assert session.states is not None, "it was opened for some"
        states = session.states[:-1].flatten(1).to(self.device, self.dtype)
        features = F.pad(self.head.project(states), (0, 0, 1, 0))
        mask[1:, 0] = -torch.inf
        places, mask = torch.arange(count, device=self.device), mask.to(self.device, self.dtype)
        return self.rows(self.head(self.head.embed(ids.to(self.device)), features, places, mask))


class HeadSession(GivenFeatures, CacheSession):
    """One sequence in a head. It reads committed tokens with the target's states, drafted ones with its own outputs.

    A commit drops all drafted tokens but the root; the next pass reads the accepted ones again, with true states. The
    text's first token has no token before it: it is read so that slots are positions, and seen by no other.
    """

    def __init__(self, model: HeadModel, capacity: int) -> None:
        super().__init__(
            model.head.settings.layers, capacity, device=torch.device(model.device), dtype=model.dtype,
            logits_dtype=torch.float32, vocab_size=model.vocab_size,
        )  # fmt: skip
        self.model = model
        hidden = model.head.settings.hidden
        self._take(model.head, torch.zeros(capacity + 1, hidden, dtype=model.dtype, device=self.device))
        self._own = torch.zeros_like(self._given)  # by slot, what a token's output is for those after it

    def commit(self, start: int, slots: Sequence[int]) -> None:
        super().commit(start, slots[:1])
        self._forget(start)

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, keep: int) -> torch.Tensor:
        head, start, count = self.model.head, self.cache.length, len(ids)
        mask = self.mask(tree_mask)[0, 0]
        mask[positions > 0, 0] = -torch.inf
        parents = torch.from_numpy(parents_of(tree_mask.numpy(), start))
        drafted = torch.arange(start, start + count) > self._known.value  # committed tokens' slots are positions
        turns = torch.zeros(count, dtype=torch.int64)  # a drafted token waits for its parent where both are new
        for index, parent in enumerate((parents - start).tolist()):
            if drafted[index] and parent >= 0:
                turns[index] = turns[parent] + 1
        embeddings, places = head.embed(ids.to(self.device)), positions.to(self.device)
        outputs = torch.empty_like(embeddings)
        for turn in range(int(turns.max()) + 1):
            rows = torch.nonzero(turns == turn)[:, 0]
            slots = start + rows
            features = self._given[positions[rows].clamp(max=len(self._given) - 1)]
            features = torch.where(drafted[rows, None].to(self.device), self._own[parents[rows]], features)
            seen = mask
            if len(rows) < count:
                self.cache.slots = slots.to(self.device)
                seen = mask.new_full((len(rows), self.cache.capacity), -torch.inf)
                seen[:, : start + count] = mask[rows]
            try:
                output = head(embeddings[rows], features, places[rows], seen, self._write)
            finally:
                self.cache.slots = None
            self._own[slots] = head.feedback(output)
            outputs[rows] = output
        return self.model.rows(outputs[-keep:])

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.cache.write(layer, keys[None], values[None])
        return keys[0], values[0]
