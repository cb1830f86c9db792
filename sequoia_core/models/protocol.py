"""The interface of language models: sessions with one text's keys and values. q = tokens in a pass, V = vocabulary."""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch

from ..files.dtypes import DTYPES, check_dtype
from ..native.threads import use_free_cores

CHUNK = 512  # tokens of a text read at once: bounds the mask of a long one to 512 x context
TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}


class Session(Protocol):
    """One sequence in one model: a KV cache of fixed capacity and whatever buffers a pass needs.

    Attributes:
        length: tokens held so far.
        logits_dtype: dtype of what `forward` returns.
        read_wait_sec: seconds that the model's passes waited so far for weights from a slower tier; 0 if resident.
        states: float [q, states, H], those of the last pass that the session was opened for; None where for none.
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
        """Run the model over more tokens and hold their keys and values.

        Args:
            ids, positions: int64 [q], on CPU.
            tree_mask: float32 [q, t], additive mask (0 or -inf) over the last t tokens held, the new ones included;
                every token before them is visible.
            keep: how many of the last rows of logits are wanted.

        Returns:
            float [keep, V] of `logits_dtype`, valid until the next call.
        """
        ...

    def commit(self, start: int, slots: Sequence[int]) -> None:
        """Keep, of the tokens from `start` on, only those at `start + slots[i]`, in that order; forget the others.

        `slots` must increase. Only tokens that move are copied.
        """
        ...

    def see(self, start: int, states: torch.Tensor) -> None:
        """Take the target's states of the committed tokens from position `start` on; only a draft head reads them."""
        ...

    def wait(self) -> None:
        """Return when the device has finished all work so far."""
        ...


class LanguageModel(ABC):
    """A model as the engine sees it: one of transformers, a GGUF file or a draft head.

    Attributes:
        name: for people and records, see `files.model_names`.
        vocab_size: V, tokens that can be drawn; the logits of padding are cut off.
        max_context: positions there are.
        eos_ids: tokens that end a text.
        device, dtype: where and in which dtype it runs; of a GGUF file its format in llama.cpp's words ("Q4_K_M").
        parameters: how many it has.
        offload: the slower tier that its layers stream from in every pass; None where they are in memory.
        reads: numbers of the target's states that it drafts from, see `open`; none for a model by itself.
        kind: its class or architecture, for messages.
        backend: what runs its passes, in words.
        is_exact: whether it computes in float32 with weights that are not quantised.
        takes_any_positions: whether a pass runs at any positions, also at those that no text has.
        bytes_read: of streamed weights so far; 0 for a model in memory.
    """

    name: str
    vocab_size: int
    max_context: int
    eos_ids: frozenset[int]
    device: torch.device
    dtype: torch.dtype | str
    parameters: int
    offload: str | None = None
    reads: tuple[int, ...] = ()
    bytes_read: int = 0
    takes_any_positions = True

    @property
    @abstractmethod
    def kind(self) -> str: ...
    @property
    @abstractmethod
    def backend(self) -> str: ...
    @property
    def is_exact(self) -> bool:
        return False

    @abstractmethod
    def open(self, capacity: int, states: Sequence[int] = ()) -> Session:
        """Return an empty session with room for `capacity` tokens.

        Args:
            states: numbers of states that it keeps of each pass: outputs after so many layers, 0 for the embedding.
        """

    @abstractmethod
    def plain_logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of a text, float [tokens, V], read in one pass without a tree."""

    def ignore_eos(self) -> Self:
        """Return this model, weights shared, with no end of text: for races in which all must write equally much."""
        twin = copy.copy(self)
        twin.eos_ids = frozenset()
        return twin

    def check_weights(self) -> None:  # noqa: B027
        """Refuse a weight that is not finite where loading did not: one that streams."""

    def rest(self) -> None:  # noqa: B027
        """Free the buffers of `plain_logits`; the next call allocates them again."""

    def close(self) -> None:  # noqa: B027
        """End threads and close files, where layers stream; the model can then run no more."""


class Tokenizer(Protocol):
    """Text to token ids and back, by the names of transformers' tokenizers.

    Attributes:
        chat_template: a Jinja template, or None.
        special_tokens_map: "bos_token" and the like -> the token's text, as templates ask for them.
        added_tokens_decoder: id -> a token that is cut out of any text before anything else (`content`, `special`).
    """

    chat_template: Any

    @property
    def special_tokens_map(self) -> dict[str, Any]: ...
    @property
    def added_tokens_decoder(self) -> dict[int, Any]: ...

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        ...

    def get_chat_template(self) -> Any:
        """Return the template that a conversation goes through where nothing else is asked for."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text; special tokens in it are read as such."""
        ...

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """Return the text of some ids, "\ufffd" for bytes that are part of a character alone."""
        ...


class Backend(Protocol):
    """One way of running a certain model's passes; `choose_backend` picks one when a model is wrapped.

    Attributes:
        description: in words, for records and pages, such as "transformers".
    """

    @property
    def description(self) -> str: ...

    def open(self, capacity: int, vocab_size: int, states: Sequence[int] = ()) -> Session:
        """Return an empty session as `LanguageModel.open` does, whose logits are cut to `vocab_size`."""
        ...


def dtype_name(model: LanguageModel) -> str:
    """Return a model's dtype as options, files and records spell it, such as "bfloat16" or "Q8_0"."""
    return str(model.dtype).removeprefix("torch.")


def find_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return one of `TORCH_DTYPES` by its name, or itself."""
    return TORCH_DTYPES[check_dtype(str(dtype).removeprefix("torch."))]


def causal_mask(count: int) -> torch.Tensor:
    """Return the mask of tokens that each see those before them and themselves, float32 [count, count]."""
    return torch.full((count, count), -torch.inf, dtype=torch.float32).triu_(1)


def parents_of(tree_mask: np.ndarray, held: int) -> np.ndarray:
    """Return the slot of each new token's parent, the latest one that it sees: int [q], -1 for the first of all.

    Args:
        tree_mask: float [q, t], as in `Session.forward`.
        held: tokens held before the pass.
    """
    count, covered = tree_mask.shape
    own = covered - count + np.arange(count)
    seen = (tree_mask == 0) & (np.arange(covered) < own[:, None])
    latest = covered - 1 - seen[:, ::-1].argmax(1)
    before = held + count - covered  # slots before those that the mask covers; all of them are seen
    return np.where(seen.any(1), before + latest, before - 1)


@torch.inference_mode()
def prefill(
    session: Session,
    ids: Sequence[int] | torch.Tensor,
    *,
    reader: Session | None = None,
    cancel: threading.Event | None = None,
) -> bool:
    """Append a text int [L] to a session in chunks, each token seeing all before it; return whether nobody cancelled.

    `cancel` is looked at before every chunk and after the last one.

    Args:
        reader: the session of a draft head, which takes the states that this one keeps.
    """
    ids = torch.as_tensor(ids, dtype=torch.int64)
    for start in range(0, len(ids), CHUNK):
        if cancel is not None and cancel.is_set():
            return False
        chunk, first = ids[start : start + CHUNK], session.length
        with use_free_cores():
            session.forward(chunk, torch.arange(len(chunk)) + first, causal_mask(len(chunk)), keep=1)
            if reader is not None and session.states is not None:
                reader.see(first, session.states)
    return cancel is None or not cancel.is_set()
