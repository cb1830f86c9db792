"""A GGUF file's tokenizer, run by llama.cpp; converted to another library, it would encode some texts differently."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sequoia_core.models.model_files import explain_load_errors

from .bindings import CONTROL, NO_TOKEN, Weights, load_llama_cpp
from .header import read_gguf_header

# Members of enum llama_vocab_type.
NO_VOCABULARY, SENTENCE_PIECE, WORD_PIECE = 0, 1, 3
# Members of enum llama_token_attr.
UNKNOWN, UNUSED, USER_DEFINED = 1, 2, 16
SPECIAL = CONTROL | UNKNOWN
# Names in chat templates, with the names in the fields that contain the ids ("seperator" is the format's spelling).
TEMPLATE_NAMES = {"unk_token": "unknown", "pad_token": "padding", "sep_token": "seperator"}


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched literally in any text."""

    content: str
    special: bool


class GGUFTokenizer:
    """llama.cpp's tokenizer for one file, with the interface of transformers (see `protocol.Tokenizer`).

    Special tokens that are spelled out in a text are parsed as special tokens, as in transformers.
    """

    def __init__(self, path: Path, name: str, weights: Weights | None = None) -> None:
        """Load the file's vocabulary, or use the loaded model's vocabulary if `weights` are given."""
        self.name = name
        with explain_load_errors(name, "a GGUF file that can be read"):
            fields = read_gguf_header(path).fields
        self._library = library = load_llama_cpp()
        self._weights = weights or Weights(library, path, name, vocab_only=True)
        self._vocab = library.c.llama_model_get_vocab(self._weights.address)
        self._count = int(library.c.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}
        template = fields.get("tokenizer.chat_template")
        self.chat_template: str | None = template if isinstance(template, str) else None
        ids = {f"{name}_token": library.defined_token(self._vocab, fields, name) for name in ("bos", "eos")}
        ids |= {key: fields.get(f"tokenizer.ggml.{field}_token_id", NO_TOKEN) for key, field in TEMPLATE_NAMES.items()}
        self._assumes_bos = ids["bos_token"] == NO_TOKEN and library.c.llama_vocab_get_add_bos(self._vocab)
        self.special_tokens_map = {
            key: self._text(token) for key, token in ids.items() if isinstance(token, int) and 0 <= token < self._count
        }
        self._check_vocabulary(fields.get("tokenizer.ggml.model"))

    def _check_vocabulary(self, model: object) -> None:
        """Reject vocabularies that would abort llama.cpp."""
        vocabulary_type = self._library.c.llama_vocab_type(self._vocab)
        if vocabulary_type == NO_VOCABULARY or self._count == 0:
            raise ValueError(f"{self.name}: found no vocabulary (tokenizer.ggml.model {model!r}), expected one")
        if vocabulary_type == SENTENCE_PIECE:
            # Byte tokens are usually among the first tokens, so the whole vocabulary is rarely read.
            first = {self._text(token) for token in range(min(1024, self._count))}
            missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in first]
            if missing:
                missing = [b for b in missing if {f"<0x{b:02X}>", chr(b)}.isdisjoint(self.get_vocab())]
            if missing:
                raise ValueError(
                    f"{self.name}: found a SentencePiece vocabulary without a token for byte {missing[0]:#04x}, "
                    "expected tokens for all 256"
                )
        lacking = {"bos_token", "sep_token", "unk_token"} - self.special_tokens_map.keys()
        if vocabulary_type == WORD_PIECE and lacking:
            raise ValueError(
                f"{self.name}: found a WordPiece vocabulary without {', '.join(sorted(lacking))}, expected these tokens"
            )

    def _text(self, token: int) -> str:
        return self._library.c.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")

    def _attributes(self, token: int) -> int:
        return self._library.c.llama_vocab_get_attr(self._vocab, token)

    @cached_property
    def used_count(self) -> int:
        """Number of tokens, not counting unused tokens at the end."""
        count = self._count
        # Gemma's tokens such as <unused0> stay, since they are control tokens too.
        while count > 1 and self._attributes(count - 1) == UNUSED:
            count -= 1
        return count

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        return {self._text(token): token for token in range(self.used_count)}

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by token, without unused tokens at the end."""
        return self._vocabulary

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        attributes = {token: self._attributes(token) for token in range(self.used_count)}
        return {
            token: AddedToken(self._text(token), bool(attribute & SPECIAL))
            for token, attribute in attributes.items()
            if attribute & (SPECIAL | USER_DEFINED)
        }

    def get_chat_template(self) -> str | None:
        return self.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data = text.encode()
        # A negative count is the negated size that the buffer requires.
        count = -(len(data) + 8)
        while count < 0:
            ids = (ctypes.c_int32 * -count)()
            count = self._library.c.llama_tokenize(
                self._vocab, data, len(data), ids, len(ids), add_special_tokens, True
            )
        if min(ids[:count], default=0) < 0:
            raise ValueError(f"{self.name}: its vocabulary has no token for some character of {text[:40]!r}")
        return ids[bool(add_special_tokens and self._assumes_bos) : count]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        outside = next((token for token in ids if not 0 <= token < self._count), None)
        if outside is not None:
            raise ValueError(f"{self.name}: found token {outside}, expected ids from 0 to {self._count - 1}")
        shown = [token for token in ids if not (skip_special_tokens and self._attributes(token) & SPECIAL)]
        data = b"".join(map(self._piece, shown))
        return (data.removeprefix(b" ") if self._adds_space else data).decode("utf-8", "replace")

    @cached_property
    def _adds_space(self) -> bool:
        """Whether texts are encoded as if they began with a space, as in SentencePiece."""
        return b"".join(map(self._piece, self.encode("x", add_special_tokens=False))).startswith(b" ")

    def _piece(self, token: int) -> bytes:
        """Return a token's bytes (`llama_detokenize` would remove spaces before punctuation)."""
        if token not in self._pieces:
            count = -64
            while count < 0:
                text = ctypes.create_string_buffer(-count)
                count = self._library.c.llama_token_to_piece(self._vocab, token, text, len(text), 0, True)
            self._pieces[token] = text.raw[:count]
        return self._pieces[token]
