"""The interface of language models and their sessions. q = number of tokens in a pass, V = vocabulary size."""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch

from ..files.dtypes import DTYPES, check_dtype
from .threads import use_free_cores

CHUNK = 512  # prompt tokens read per pass, which limits the mask to 512 x context
TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


class Session(Protocol):
    """One sequence in one model, with a KV cache of fixed capacity.

    Attributes:
        length: number of cached tokens.
        logits_dtype: dtype of the logits that `forward` returns.
        read_wait_sec: total seconds that passes have waited for streamed weights; 0 if all weights are in memory.
        states: float [q, states, H], the hidden states of the last pass that were requested in `open`; None if none.
    """

    @property
    def length(self) -> int: ...
    @property
    def logits_dtype(self) -> torch.dtype: ...
    @property
    def read_wait_sec(self) -> float: ...
    @property
    def states(self) -> torch.Tensor | None: ...

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, tree_mask: torch.Tensor, *, keep: int
    ) -> torch.Tensor:
        """Run the model over more tokens and cache their keys and values.

        Args:
            ids, positions: int64 [q], on CPU.
            tree_mask: float32 [q, t], additive mask (0 or -inf) over the last t tokens including the new ones; all
                earlier tokens are visible.
            keep: number of trailing rows of logits to return.

        Returns:
            float [keep, V] of `logits_dtype`, valid until the next call.
        """
        ...

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Move the token at `start + slots[i]` to `start + i` for each i, and discard all other tokens from `start` on.

        `slots` must be increasing. Only tokens that move are copied.
        """
        ...

    def observe_states(self, start: int, states: torch.Tensor) -> None:
        """Receive the target's states for the committed tokens from position `start` on; only draft heads use them."""
        ...

    def wait(self) -> None:
        """Wait for the device to finish all queued work."""
        ...


class LanguageModel(ABC):
    """The engine's interface to a model: a transformers model, a GGUF file or a draft head.

    Attributes:
        name: name for display and records (see `files.model_names`).
        vocab_size: V, the number of tokens that can be sampled; padding logits are dropped.
        max_context: the maximum number of positions.
        eos_ids: ids of the tokens that end a text.
        device, dtype: device and dtype of its passes; for a GGUF file, the dtype is llama.cpp's format ("Q4_K_M").
        parameters: number of parameters.
        offload: the slower tier from which its layers are streamed in every pass; None if they are in memory.
        state_indices: indices of the target's states that a draft head reads (see `open`); empty for other models.
        architecture: its class or architecture, for messages.
        backend: description of the code that runs its passes.
        is_exact: whether it computes in float32 with unquantized weights.
        takes_any_positions: whether a pass accepts positions that cannot occur in a text.
        bytes_read: total number of bytes read for streamed weights; 0 for a model in memory.
        depths_per_pass: number of depths whose rows a step's first draft pass computes; if it is more than one, later
            passes take almost no time.
        remarks: notes about its files to show to the user.
    """

    name: str
    vocab_size: int
    max_context: int
    eos_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype | str
    parameters: int
    offload: str | None = None
    state_indices: tuple[int, ...] = ()
    bytes_read: int = 0
    remarks: tuple[str, ...] = ()
    depths_per_pass: int = 1
    takes_any_positions = True

    @property
    @abstractmethod
    def architecture(self) -> str: ...
    @property
    @abstractmethod
    def backend(self) -> str: ...
    @property
    def is_exact(self) -> bool:
        return False

    @abstractmethod
    def open(self, capacity: int, state_indices: Sequence[int] = ()) -> Session:
        """Return an empty session for up to `capacity` tokens.

        Args:
            state_indices: hidden states to record in each pass; index i is the output of layer i, counted from 1, and 0
                is the embedding.
        """

    @abstractmethod
    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits for token ids, float [tokens, V], from one pass without a tree."""

    def ignore_eos(self) -> Self:
        """Return a model that shares these weights but has no EOS tokens, for races over texts of equal length."""
        twin = copy.copy(self)
        twin.eos_ids = frozenset()
        return twin

    def check_weights(self) -> None:  # noqa: B027
        """Raise ValueError for non-finite weights that loading did not check because they are streamed."""

    def release_buffers(self) -> None:  # noqa: B027
        """Free the buffers of `plain_logits`; the next call reallocates them."""

    def close(self) -> None:  # noqa: B027
        """Stop threads and close files of streamed layers; the model cannot run afterwards."""


class Tokenizer(Protocol):
    """A tokenizer, with the interface of transformers' tokenizers.

    Attributes:
        chat_template: a Jinja template; None if there is none.
        special_tokens_map: role, such as "bos_token" -> the token's text, for templates.
        added_tokens_decoder: id -> added token (`content`, `special`), which is split off before tokenization.
    """

    chat_template: Any

    @property
    def special_tokens_map(self) -> dict[str, Any]: ...
    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...

    def get_vocab(self) -> dict[str, int]:
        """Return the vocabulary, token -> id."""
        ...

    def get_chat_template(self) -> Any:
        """Return the default chat template."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return a text's token ids; special tokens in the text become their ids."""
        ...

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """Return the text for token ids, with "\ufffd" for incomplete characters."""
        ...


class Backend(Protocol):
    """An implementation of a model's passes, selected by `choose_backend`.

    Attributes:
        description: description for records and display, such as "transformers".
    """

    @property
    def description(self) -> str: ...

    def open(self, capacity: int, vocab_size: int, state_indices: Sequence[int] = ()) -> Session:
        """Return an empty session as `LanguageModel.open` does, with logits truncated to `vocab_size`."""
        ...


def dtype_name(model: LanguageModel) -> str:
    """Return a model's dtype as spelled in options, files and records, such as "bfloat16" or "Q8_0"."""
    return str(model.dtype).removeprefix("torch.")


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return one of `TORCH_DTYPES`, given by its name or as a dtype."""
    return TORCH_DTYPES[check_dtype(str(dtype).removeprefix("torch."))]


def causal_mask(count: int) -> torch.Tensor:
    """Return an additive causal mask, float32 [count, count]."""
    return torch.full((count, count), -torch.inf, dtype=torch.float32).triu_(1)


def parent_slots(tree_mask: np.ndarray, cached: int) -> np.ndarray:
    """Return the slot of each new token's parent, the latest token it attends to: int [q], -1 for the first token.

    Args:
        tree_mask: float [q, t], as in `Session.forward`.
        cached: number of tokens cached before the pass.
    """
    count, covered = tree_mask.shape
    new_slots = covered - count + np.arange(count)
    seen = (tree_mask == 0) & (np.arange(covered) < new_slots[:, None])
    latest = covered - 1 - seen[:, ::-1].argmax(1)
    before = cached + count - covered  # number of slots before the mask, all visible
    return np.where(seen.any(1), before + latest, before - 1)


@torch.inference_mode()
def prefill(
    session: Session,
    ids: Sequence[int] | torch.Tensor,
    *,
    reader: Session | None = None,
    cancel: threading.Event | None = None,
) -> bool:
    """Append token ids, int [L], to a session in chunks; return False if cancelled.

    `cancel` is checked before every chunk and after the last one.

    Args:
        reader: the session of a draft head, which receives the hidden states.
    """
    ids = torch.as_tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), CHUNK):
        if cancel is not None and cancel.is_set():
            return False
        chunk = ids[start : start + CHUNK]
        first = session.length
        with use_free_cores():
            session.forward(chunk, torch.arange(len(chunk)) + first, causal_mask(len(chunk)), keep=1)
            if reader is not None and session.states is not None:
                reader.observe_states(first, session.states)
    return cancel is None or not cancel.is_set()
