"""An EAGLE-3 head as a torch module, usable with autograd. n = tokens, H = its hidden size, k = layers it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# (layer, keys, values [.., heads, n, d]) -> those of all tokens that may be seen, the new ones last
Write = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """What a head's config.json says.

    Attributes:
        form: in words, for people.
        hidden, inner, heads, key_heads, head_dim, layers: as of a Llama.
        vocab, draft_vocab: tokens that it reads, and those that it can propose.
        context: positions.
        target_hidden: hidden size of its target.
        reads: numbers of the target's states, each the output after so many of its layers (0: the embedding); None
            where the form leaves them to the target's number of layers: 2, n // 2 and n - 3 of n.
        rotation: rotary settings as transformers has them.
        norm_before_residual: the residual is the normed feature.
        norm_before_fc: one norm over all states before `fc`; `fc_norm`: one for each of them.
        norm_output: its own outputs are fed back after the last norm.
        head_norms, biases: of queries and keys (Qwen 3); of query, key and value.
        tied: its output layer is its embedding, where it has both.
        implied_head_dim: config.json does not give `head_dim`, so the weights decide.
    """

    form: str
    hidden: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    layers: int
    vocab: int
    draft_vocab: int
    context: int
    eps: float
    target_hidden: int
    reads: tuple[int, ...] | None
    rotation: dict[str, Any]
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    head_norms: bool = False
    biases: bool = False
    tied: bool = False
    implied_head_dim: bool = False

    @property
    def states(self) -> int:
        """How many of the target's states it reads at each token."""
        return 3 if self.reads is None else len(self.reads)


class Attention(nn.Module):
    def __init__(self, settings: HeadSettings, inputs: int) -> None:
        super().__init__()
        size, keys = settings.heads * settings.head_dim, settings.key_heads * settings.head_dim
        self.head_dim, self.grouped = settings.head_dim, settings.heads != settings.key_heads
        self.q_proj = nn.Linear(inputs, size, bias=settings.biases)
        self.k_proj = nn.Linear(inputs, keys, bias=settings.biases)
        self.v_proj = nn.Linear(inputs, keys, bias=settings.biases)
        self.o_proj = nn.Linear(size, settings.hidden, bias=False)
        norms = settings.head_norms
        self.q_norm = nn.RMSNorm(self.head_dim, settings.eps) if norms else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, settings.eps) if norms else nn.Identity()

    def forward(
        self, hidden: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None,
        write: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:  # fmt: skip
        queries, keys, values = (
            part(hidden).unflatten(-1, (-1, self.head_dim)) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = (rotated(norm, turn) for norm in (self.q_norm(queries), self.k_norm(keys)))
        keys, values = write(keys.transpose(-2, -3), values.transpose(-2, -3))
        attended = F.scaled_dot_product_attention(
            queries.transpose(-2, -3), keys, values, attn_mask=mask, enable_gqa=self.grouped
        )
        return self.o_proj(attended.transpose(-2, -3).flatten(-2))


class Layer(nn.Module):
    """A decoder layer; the first one of a head takes the token's embedding beside the feature."""

    def __init__(self, settings: HeadSettings, first: bool) -> None:
        super().__init__()
        hidden, eps = settings.hidden, settings.eps
        self.first, self.norm_before_residual = first, settings.norm_before_residual
        self.self_attn = Attention(settings, 2 * hidden if first else hidden)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        if first:
            self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, settings.inner, bias=False),
                "up_proj": nn.Linear(hidden, settings.inner, bias=False),
                "down_proj": nn.Linear(settings.inner, hidden, bias=False),
            }
        )

    def forward(self, embeddings: torch.Tensor, hidden: torch.Tensor, *attention) -> torch.Tensor:
        if self.first:
            normed = self.hidden_norm(hidden)
            hidden = normed if self.norm_before_residual else hidden
            normed = torch.cat([self.input_layernorm(embeddings), normed], -1)
        else:
            normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, *attention)
        normed = self.post_attention_layernorm(hidden)
        return hidden + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed))


class Eagle3Head(nn.Module):
    """A head of any EAGLE-3 form; parameters have the names of the `speculators` form.

    Args:
        embedding: [vocab, H], the target's where the head brings none; it is then no parameter of the head.
        output: [draft vocab, H], likewise.

    Attributes:
        tokens: int64 [draft vocab], the target's token of each that it can propose; None where they are the same.
        remarks: sentences on what a reader should know of its files.
    """

    def __init__(
        self, settings: HeadSettings, embedding: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.settings, hidden, states = settings, settings.hidden, settings.states
        self.remarks: list[str] = []
        wide = states * settings.target_hidden
        self.fc = nn.Linear(wide, hidden, bias=False)
        if settings.norm_before_fc:
            self.input_norm = nn.RMSNorm(wide, settings.eps)
        if settings.fc_norm:
            self.fc_norm = nn.ModuleList([nn.RMSNorm(settings.target_hidden, settings.eps) for _ in range(states)])
        self.layers = nn.ModuleList([Layer(settings, first=index == 0) for index in range(settings.layers)])
        self.norm = nn.RMSNorm(hidden, settings.eps)
        self.shared = (embedding, output)  # in a tuple, so that they are no parameters of this module
        if embedding is None:
            self.embed_tokens = nn.Embedding(settings.vocab, hidden)
        if output is None:
            self.lm_head = nn.Linear(hidden, settings.draft_vocab, bias=False)
        self.tokens: torch.Tensor | None
        self.register_buffer("tokens", None, persistent=False)
        with torch.device("cpu"):  # also where the rest has no memory yet
            rotary: Any = LlamaRotaryEmbedding(
                LlamaConfig(
                    hidden_size=hidden, num_attention_heads=settings.heads, head_dim=settings.head_dim,
                    max_position_embeddings=settings.context, **settings.rotation,
                )
            )  # fmt: skip
        self.frequencies = rotary.inv_freq.float()  # no buffer, which another dtype would round
        self.rotary_scaling = float(rotary.attention_scaling)

    def weights_at_ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embedding [vocab, H] and the output layer [draft vocab, H], its own or the target's."""
        embedding, output = self.shared
        return (
            self.embed_tokens.weight if embedding is None else embedding,
            self.lm_head.weight if output is None else output,
        )

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of the target's tokens [.., n] -> [.., n, H]."""
        return F.embedding(ids, self.weights_at_ends()[0])

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """Return the features of the target's states, one beside the other: [.., n, k · target's H] -> [.., n, H]."""
        settings = self.settings
        if settings.norm_before_fc:
            states = self.input_norm(states)
        if settings.fc_norm:
            parts = states.chunk(settings.states, -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(states)

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
        write: Write | None = None,
    ) -> torch.Tensor:
        """Return the output before the last norm, [.., n, H].

        Args:
            embeddings: [.., n, H] of the tokens.
            features: [.., n, H] of the token before each: `project` of the target's states where the target has read
                that token, else `feedback` of the output there.
            positions: int64 [n].
            mask: additive, [n, all tokens that `write` returns]; None: each token sees all of them.
            write: gives keys and values of tokens read before, and may keep the new ones, as `TreeCache.write` does;
                None where there are no others.
        """
        angles = positions[..., None, None].float() * self.frequencies.to(positions.device)
        cos, sin = ((part * self.rotary_scaling).to(features.dtype) for part in (angles.cos(), angles.sin()))
        hidden = features
        for index, layer in enumerate(self.layers):

            def own(keys: torch.Tensor, values: torch.Tensor, index: int = index) -> tuple[torch.Tensor, torch.Tensor]:
                return (keys, values) if write is None else write(index, keys, values)

            hidden = layer(embeddings, hidden, (cos, sin), mask, own)
        return hidden

    def feedback(self, output: torch.Tensor) -> torch.Tensor:
        """Return the feature that its own output [.., n, H] is for the token after it."""
        return self.norm(output) if self.settings.norm_output else output

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Return logits over its own vocabulary, [.., n, draft vocab]; `tokens` has the target's tokens of them."""
        shared = self.shared[1]
        normed = self.norm(output)
        return self.lm_head(normed) if shared is None else F.linear(normed, shared)


def rotated(heads: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return queries or keys [.., n, heads, d] turned by their positions' angles, cosines and sines [n, 1, d / 2]."""
    (low, high), (cos, sin) = heads.chunk(2, -1), turn
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
