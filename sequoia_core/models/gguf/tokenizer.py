"""The tokenizer in a GGUF file as llama.cpp runs it: converters to other libraries give other ids for some texts."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...files.gguf_header import read_gguf_header
from ..model_files import explained
from .bindings import CONTROL, NO_TOKEN, Weights, load

NONE, SENTENCEPIECE, WORD_PIECES = 0, 1, 3  # of enum llama_vocab_type
UNKNOWN, UNUSED, USER_DEFINED = 1, 2, 16  # of enum llama_token_attr
TEMPLATE_NAMES = {  # what chat templates call certain tokens, and the fields that number them
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that stands for itself in any text."""

    content: str
    special: bool


class GGUFTokenizer:
    """llama.cpp's tokenizer of one file, by the names of transformers' (see `protocol.Tokenizer`).

    Special tokens written in a text are read as such, as transformers does for a folder.
    """

    def __init__(self, path: Path, name: str, weights: Weights | None = None) -> None:
        """Read a file's vocabulary; its model's where that is loaded already."""
        self.name = name
        with explained(name, "a GGUF file that can be read"):
            fields = read_gguf_header(path).fields
        self._library = library = load()
        self._weights = weights or Weights(library, path, name, vocab_only=True)
        self._vocab = library.c.llama_model_get_vocab(self._weights.address)
        self._count = int(library.c.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}
        template = fields.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) else None
        ids = {name: fields.get(f"tokenizer.ggml.{field}_token_id", NO_TOKEN) for name, field in TEMPLATE_NAMES.items()}
        ids |= {f"{name}_token": library.defined_token(self._vocab, fields, name) for name in ("bos", "eos")}
        self._assumes_bos = ids["bos_token"] == NO_TOKEN and library.c.llama_vocab_get_add_bos(self._vocab)
        self.special_tokens_map = {
            name: self._text(token)
            for name, token in ids.items()
            if isinstance(token, int) and 0 <= token < self._count
        }
        self._check(fields.get("tokenizer.ggml.model"))

    def _check(self, kind: object) -> None:
        """Refuse a vocabulary over which llama.cpp would end the process."""
        vocabulary = self._library.c.llama_vocab_type(self._vocab)
        if vocabulary == NONE or self._count == 0:
            raise ValueError(f"{self.name}: found no vocabulary (tokenizer.ggml.model {kind!r}), expected one")
        if vocabulary == SENTENCEPIECE:
            first = {self._text(token) for token in range(min(1024, self._count))}  # where bytes usually are
            bare = [byte for byte in range(256) if f"<0x{byte:02X}>" not in first]
            if bare and (bare := [b for b in bare if {f"<0x{b:02X}>", chr(b)}.isdisjoint(self.get_vocab())]):
                raise ValueError(
                    f"{self.name}: found a SentencePiece vocabulary without a token for byte {bare[0]:#04x}, "
                    "expected tokens for all 256"
                )
        lacking = {"bos_token", "sep_token", "unk_token"} - self.special_tokens_map.keys()
        if vocabulary == WORD_PIECES and lacking:
            raise ValueError(
                f"{self.name}: found a vocabulary of word pieces without {', '.join(sorted(lacking))}, expected it"
            )

    def _text(self, token: int) -> str:
        return self._library.c.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")

    def _attributes(self, token: int) -> int:
        return self._library.c.llama_vocab_get_attr(self._vocab, token)

    @cached_property
    def known(self) -> int:
        """How many tokens there are before the unused ones at the end."""
        real = self._count
        while real > 1 and self._attributes(real - 1) == UNUSED:  # Gemma's <unused0> are control tokens too, and stay
            real -= 1
        return real

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return {self._text(token): token for token in range(self.known)}

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id, without unused tokens at the end."""
        return self._vocabulary

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        kinds = {token: self._attributes(token) for token in range(self.known)}
        return {
            token: AddedToken(self._text(token), bool(kind & (CONTROL | UNKNOWN)))
            for token, kind in kinds.items()
            if kind & (CONTROL | UNKNOWN | USER_DEFINED)
        }

    def get_chat_template(self) -> str | None:
        return self.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data = text.encode()
        size = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * size)()
            count = self._library.c.llama_tokenize(self._vocab, data, len(data), ids, size, add_special_tokens, True)
            if count >= 0:
                break
            size = -count
        if min(ids[:count], default=0) < 0:
            raise ValueError(f"{self.name}: found text {text[:40]!r} that its vocabulary has no token for")
        return ids[bool(add_special_tokens and self._assumes_bos) : count]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        outside = next((token for token in ids if not 0 <= token < self._count), None)
        if outside is not None:
            raise ValueError(f"{self.name}: found token {outside}, expected ids from 0 to {self._count - 1}")
        kept = [token for token in ids if not (skip_special_tokens and self._attributes(token) & (CONTROL | UNKNOWN))]
        data = b"".join(map(self._piece, kept))
        return (data[1:] if self._adds_a_space and data[:1] == b" " else data).decode("utf-8", "replace")

    @cached_property
    def _adds_a_space(self) -> bool:
        """Whether a text is read as if a space stood before it, as SentencePiece does."""
        return b"".join(map(self._piece, self.encode("x", add_special_tokens=False))).startswith(b" ")

    def _piece(self, token: int) -> bytes:
        """Return a token's bytes. (`llama_detokenize` takes spaces away before stops, which are in the text.)"""
        piece = self._pieces.get(token)
        if piece is None:
            size = 64
            while True:
                text = ctypes.create_string_buffer(size)
                count = self._library.c.llama_token_to_piece(self._vocab, token, text, size, 0, True)
                if count >= 0:
                    break
                size = -count
            piece = self._pieces[token] = text.raw[:count]
        return piece
