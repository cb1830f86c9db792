"""Draft heads as language models, with sessions that draft from the target's states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from sequoia_core.models.protocol import LanguageModel, causal_mask, parent_slots, prefill
from sequoia_core.models.tree_cache import CacheSession

from ..cpu_kernels import linear
from .block_session import BlockSession
from .compiled_head import CompiledHead, CompiledHeadSession
from .eagle3 import Eagle3Head
from .features import TargetFeatures

if TYPE_CHECKING:
    from sequoia_core.models.language_model import HuggingFaceModel

    from .mtp import MtpHead


class HeadModel(LanguageModel):
    """A draft head with its target (see `protocol.LanguageModel` for the attributes).

    Args:
        head: the head, on the target's device and in its dtype.
    """

    dtype: torch.dtype

    def __init__(self, head: Eagle3Head | MtpHead, name: str, target: HuggingFaceModel) -> None:
        settings = head.settings
        assert settings.reads is not None, "set when a head is read for a target"
        self.head = head.eval()
        self.name = name
        self.target = target
        self.remarks = tuple(head.remarks)
        self.state_indices = settings.reads
        self.max_context = settings.context
        self.vocab_size = target.vocab_size
        self.eos_ids = target.eos_ids
        self.dtype = target.model.dtype
        self.device = target.device
        self.parameters = sum(weights.numel() for weights in head.parameters())
        linear.compile_layers(head)
        self._compiled: CompiledHead | None = None
        self.depths_per_pass = 1 if settings.block is None else settings.block.rows
        if settings.block is None and isinstance(head, Eagle3Head) and CompiledHead.supports(head):
            self._compiled = CompiledHead(head)

    @property
    def architecture(self) -> str:
        return self.head.settings.form

    @property
    def backend(self) -> str:
        indices = ", ".join(map(str, self.state_indices))
        code = linear.description(self.head) if self._compiled is None else self._compiled.description
        return ", ".join(filter(None, [f"{self.architecture} head of states {indices}", code]))

    def open(
        self, capacity: int, state_indices: Sequence[int] = ()
    ) -> HeadSession | BlockSession | CompiledHeadSession:
        if self.head.settings.block is not None:
            return BlockSession(self, capacity)
        if self._compiled is None:
            return HeadSession(self, capacity)
        return CompiledHeadSession(self._compiled, capacity, self.vocab_size)

    def target_logits(self, output: Tensor) -> Tensor:
        """Return logits, float32 [n, V], given the head's outputs, [n, H]; -inf for target tokens the head lacks."""
        logits = self.head.logits(output).float()
        tokens = self.head.tokens
        if tokens is None:
            return logits[:, : self.vocab_size]
        rows = logits.new_full((len(logits), self.head.settings.vocab), -torch.inf)
        return rows.index_copy_(1, tokens, logits)[:, : self.vocab_size]

    @torch.inference_mode()
    def plain_logits(self, ids: Tensor) -> Tensor:
        """Return logits for token ids, int64 [n], float32 [n, V], without a cache; runs a pass of the target first."""
        count = len(ids)
        mask = causal_mask(count)
        if self.head.settings.block is not None:
            reader = self.open(count)
            prefill(self.target.open(count, self.state_indices), ids, reader=reader)
            return reader.forward(ids, torch.arange(count), mask, keep=count)
        session = self.target.open(count, self.state_indices)
        session.forward(ids, torch.arange(count), mask, keep=1)
        assert session.states is not None, "requested in `open`"
        states = session.states[:-1].flatten(1).to(self.device, self.dtype)
        features = F.pad(self.head.project(states), (0, 0, 1, 0))
        mask[1:, 0] = -torch.inf
        embeddings = self.head.embed(ids.to(self.device))
        positions = torch.arange(count, device=self.device)
        return self.target_logits(self.head(embeddings, features, positions, mask.to(self.device, self.dtype)))


class HeadSession(TargetFeatures, CacheSession):
    """One sequence in a head, which reads committed tokens with the target's states and drafted ones with its outputs.

    A commit drops all drafted tokens except the root; the next pass reads the accepted ones again, with the target's
    states. The first token of a text has no feature: it is read so that slots equal positions, but no other token
    attends to it.
    """

    any_slot = True
    rereads_paths = True

    def __init__(self, model: HeadModel, capacity: int) -> None:
        super().__init__(
            model.head.settings.layers,
            capacity,
            device=torch.device(model.device),
            dtype=model.dtype,
            logits_dtype=torch.float32,
            vocab_size=model.vocab_size,
        )
        self.model = model
        features = torch.zeros(capacity + 1, model.head.settings.hidden, dtype=model.dtype, device=self.device)
        self._init_features(model.head, features)
        # Fed-back outputs by slot: each is the feature of the token's children.
        self._outputs = torch.zeros_like(features)
        self._last_known_on_device = torch.zeros(1, dtype=torch.int64, device=self.device)

    def observe_states(self, start: int, states: Tensor) -> None:
        super().observe_states(start, states)
        self._last_known_on_device.fill_(self._last_known.value)

    def commit(self, start: int, slots: Sequence[int]) -> None:
        super().commit(start, slots)
        self._last_known_on_device.fill_(self._last_known.value)

    def _logits(self, ids: Tensor, positions: Tensor, tree_mask: Tensor, keep: int) -> Tensor:
        if self.cache.slots is not None:
            return self._static_logits(ids, positions, self.cache.slots, tree_mask[0, 0])
        head = self.model.head
        start = self.cache.length
        count = len(ids)
        mask = self.mask(tree_mask)[0, 0]
        mask[positions > 0, 0] = -torch.inf
        parents = torch.from_numpy(parent_slots(tree_mask.numpy(), start))
        # The slots of committed tokens are their positions.
        is_drafted = torch.arange(start, start + count) > self._last_known.value
        # A drafted token reads its parent's output, so a parent in this pass is computed in an earlier round.
        rounds = torch.zeros(count, dtype=torch.int64)
        for index, parent in enumerate((parents - start).tolist()):
            if is_drafted[index] and parent >= 0:
                rounds[index] = rounds[parent] + 1
        embeddings = head.embed(ids.to(self.device))
        device_positions = positions.to(self.device)
        outputs = torch.empty_like(embeddings)
        for number in range(int(rounds.max()) + 1):
            rows = torch.nonzero(rounds == number)[:, 0]
            slots = start + rows
            features = self._features[positions[rows].clamp(max=len(self._features) - 1)]
            use_outputs = is_drafted[rows, None].to(self.device)
            features = torch.where(use_outputs, self._outputs[parents[rows]], features)
            round_mask = mask
            if len(rows) < count:
                self.cache.slots = slots.to(self.device)
                round_mask = mask.new_full((len(rows), self.cache.capacity), -torch.inf)
                round_mask[:, : start + count] = mask[rows]
            try:
                output = head(embeddings[rows], features, device_positions[rows], round_mask, self._write)
            finally:
                self.cache.slots = None
            self._outputs[slots] = head.feedback(output)
            outputs[rows] = output
        return self.model.target_logits(outputs[-keep:])

    def _static_logits(self, ids: Tensor, positions: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        """Run a pass of fixed shape, without reading from the device; the parents are not in the same pass."""
        head = self.model.head
        every_slot = torch.arange(mask.shape[1], device=self.device)
        # A token's parent is in the last slot that it attends to besides its own.
        parents = torch.where((mask == 0) & (every_slot != slots[:, None]), every_slot, 0).amax(1)
        hidden = (positions > 0)[:, None] & (every_slot == 0)
        is_drafted = (positions > self._last_known_on_device)[:, None]
        features = torch.where(is_drafted, self._outputs[parents], self._features[positions])
        output = head(head.embed(ids), features, positions, mask.masked_fill(hidden, -torch.inf), self._write)
        self._outputs.index_copy_(0, slots, head.feedback(output))
        return self.model.target_logits(output)

    def _write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.cache.write(layer, keys[None], values[None])
        return keys[0], values[0]
