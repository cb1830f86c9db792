"""EAGLE-3 heads as torch modules that support autograd. n = number of tokens, H = hidden size, d = head size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# Takes a layer index and new keys and values [.., heads, n, d]; returns those of all visible tokens, the new ones last.
WriteCache = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """Settings of a head that drafts a block in one pass: an anchor, which is the last committed token, and masks.

    Attributes:
        size: number of tokens in a block.
        mask_token: id of the token whose embedding the masks read.
        first_row: index in the block of the output that predicts the token after the anchor.
        causal: for each layer, whether a block's tokens attend only to earlier ones of the block.
        windows: for each layer, the number of context tokens that a block attends to; None for all.
        target_layers: number of layers of the target; None if config.json does not contain it.
    """

    size: int
    mask_token: int
    first_row: int
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    target_layers: int | None = None

    @property
    def rows(self) -> int:
        """Number of depths that a block predicts."""
        return self.size - self.first_row


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Settings from a head's config.json.

    Attributes:
        form: display name of the file format.
        hidden, inner, heads, key_heads, head_dim, layers: sizes, as in a Llama model.
        vocab, draft_vocab: sizes of the vocabularies that the head reads and proposes from.
        context: number of positions.
        target_hidden: hidden size of the target.
        reads: indices of the target's states that the head reads (i: output of the first i layers, 0: embedding); None
            for the format's default, 2, n // 2 and n - 3 of n layers.
        rotation: RoPE settings, named as in transformers.
        norm_before_residual: whether the residual is the normalized feature.
        norm_before_fc: whether one norm is applied to all concatenated states before `fc`.
        fc_norm: whether each state has its own norm before `fc`.
        norm_output: whether outputs are fed back after the final norm.
        head_norms: whether queries and keys are normalized (Qwen 3).
        biases: whether the query, key and value projections have biases.
        tied: whether the output layer is the embedding, if the head has its own embedding.
        implied_head_dim: whether config.json lacks `head_dim`, so that it follows from the weights.
        block: settings of a head that drafts all depths in one pass; None for one pass per depth.
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
    block: BlockSettings | None = None

    @property
    def states(self) -> int:
        """Number of target states that the head reads for each token."""
        return 3 if self.reads is None else len(self.reads)


class HeadAttention(nn.Module):
    def __init__(self, settings: HeadSettings, inputs: int) -> None:
        super().__init__()
        size = settings.heads * settings.head_dim
        keys = settings.key_heads * settings.head_dim
        self.head_dim = settings.head_dim
        self.grouped = settings.heads != settings.key_heads
        self.q_proj = nn.Linear(inputs, size, bias=settings.biases)
        self.k_proj = nn.Linear(inputs, keys, bias=settings.biases)
        self.v_proj = nn.Linear(inputs, keys, bias=settings.biases)
        self.o_proj = nn.Linear(size, settings.hidden, bias=False)
        norms = settings.head_norms
        self.q_norm = nn.RMSNorm(self.head_dim, settings.eps) if norms else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, settings.eps) if norms else nn.Identity()

    def forward(
        self,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        write: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        context: Tensor | None = None,
    ) -> Tensor:
        read = hidden if context is None else torch.cat([context, hidden], -2)
        inputs = ((self.q_proj, hidden), (self.k_proj, read), (self.v_proj, read))
        queries, keys, values = (project(given).unflatten(-1, (-1, self.head_dim)) for project, given in inputs)
        cos, sin = (part[..., -hidden.shape[-2] :, :, :] for part in rotation)
        queries = apply_rotary(self.q_norm(queries), (cos, sin))
        keys = apply_rotary(self.k_norm(keys), rotation)
        keys, values = write(keys.transpose(-2, -3), values.transpose(-2, -3))
        attended = F.scaled_dot_product_attention(
            queries.transpose(-2, -3), keys, values, attn_mask=mask, enable_gqa=self.grouped
        )
        return self.o_proj(attended.transpose(-2, -3).flatten(-2))


class HeadLayer(nn.Module):
    """A decoder layer; a head's first layer reads the token's embedding and the feature, concatenated."""

    def __init__(self, settings: HeadSettings, first: bool) -> None:
        super().__init__()
        hidden = settings.hidden
        inner = settings.inner
        self.first = first
        self.norm_before_residual = settings.norm_before_residual
        self.self_attn = HeadAttention(settings, 2 * hidden if first else hidden)
        self.input_layernorm = nn.RMSNorm(hidden, settings.eps)
        if first:
            self.hidden_norm = nn.RMSNorm(hidden, settings.eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, settings.eps)
        sizes = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def forward(self, embeddings: Tensor, hidden: Tensor, *attention) -> Tensor:
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
    """An EAGLE-3 head of either form, with parameters named as in the `speculators` form.

    Args:
        embedding: [vocab, H], the target's embedding, which is not a parameter of the head; None if it has its own.
        output: [draft vocab, H], the target's output layer, likewise.

    Attributes:
        tokens: int64 [draft vocab], the target's id of each token that the head can propose; None if ids are equal.
        remarks: sentences for the user about the head's files.
    """

    def __init__(self, settings: HeadSettings, embedding: Tensor | None = None, output: Tensor | None = None) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden
        states = settings.states
        self.remarks: list[str] = []
        self.fc = nn.Linear(states * settings.target_hidden, hidden, bias=False)
        if settings.norm_before_fc:
            self.input_norm = nn.RMSNorm(states * settings.target_hidden, settings.eps)
        if settings.fc_norm:
            self.fc_norm = nn.ModuleList([nn.RMSNorm(settings.target_hidden, settings.eps) for _ in range(states)])
        self.layers = nn.ModuleList([HeadLayer(settings, first=index == 0) for index in range(settings.layers)])
        self.norm = nn.RMSNorm(hidden, settings.eps)
        # A tuple hides the target's weights from `parameters()`.
        self.shared = (embedding, output)
        if embedding is None:
            self.embed_tokens = nn.Embedding(settings.vocab, hidden)
        if output is None:
            self.lm_head = nn.Linear(hidden, settings.draft_vocab, bias=False)
        self.tokens: Tensor | None
        self.register_buffer("tokens", None, persistent=False)
        config = LlamaConfig(
            hidden_size=hidden,
            num_attention_heads=settings.heads,
            head_dim=settings.head_dim,
            max_position_embeddings=settings.context,
            **settings.rotation,
        )
        # These are on the CPU even if the other weights are on the meta device.
        with torch.device("cpu"):
            rotary: Any = LlamaRotaryEmbedding(config)
        # Captured passes need these on the head's device. Casting the module would round them.
        self.frequencies: Tensor
        self.register_buffer("frequencies", rotary.inv_freq.float(), persistent=False)
        self.rotary_scaling = float(rotary.attention_scaling)

    def embedding_and_output_weights(self) -> tuple[Tensor, Tensor]:
        """Return the embedding [vocab, H] and the output layer [draft vocab, H], the head's own or the target's."""
        embedding, output = self.shared
        return (
            self.embed_tokens.weight if embedding is None else embedding,
            self.lm_head.weight if output is None else output,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings, [.., n, H], given the target's token ids, [.., n]."""
        return F.embedding(ids, self.embedding_and_output_weights()[0])

    def project(self, states: Tensor) -> Tensor:
        """Return features, [.., n, H], given the target's concatenated states, [.., n, states · target H]."""
        settings = self.settings
        if settings.norm_before_fc:
            states = self.input_norm(states)
        if settings.fc_norm:
            parts = states.chunk(settings.states, -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(states)

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | Sequence[Tensor] | None = None,
        write: WriteCache | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Return the output before the final norm, [.., n, H].

        Args:
            embeddings: [.., n, H], the tokens' embeddings.
            features: [.., n, H], features of the previous tokens: `project` applied to the target's states if the
                target has read these tokens, otherwise `feedback` applied to the head's outputs.
            positions: int64 [n]; with a context, int64 [c + n].
            mask: [n, tokens that `write` returns], added to attention scores; a list of one per layer if they differ;
                None if every token attends to all.
            write: function that adds keys and values to a cache and returns all of them, like `TreeCache.write`; None
                to use no cache.
            context: [.., c, H], further tokens that only keys and values are computed from, in every layer.
        """
        angles = positions[..., None, None].float() * self.frequencies
        cos, sin = ((part * self.rotary_scaling).to(features.dtype) for part in (angles.cos(), angles.sin()))
        hidden = features
        masks = mask if isinstance(mask, Sequence) else [mask] * len(self.layers)
        for index, layer in enumerate(self.layers):

            def write_layer(keys: Tensor, values: Tensor, index: int = index) -> tuple[Tensor, Tensor]:
                return (keys, values) if write is None else write(index, keys, values)

            hidden = layer(embeddings, hidden, (cos, sin), masks[index], write_layer, context)
        return hidden

    def feedback(self, output: Tensor) -> Tensor:
        """Return the next token's features, [.., n, H], given the head's outputs, [.., n, H]."""
        return self.norm(output) if self.settings.norm_output else output

    def logits(self, output: Tensor) -> Tensor:
        """Return logits over the head's vocabulary, [.., n, draft vocab]; `tokens` maps it to the target's."""
        shared = self.shared[1]
        normed = self.norm(output)
        # Call the module rather than use its weight, because it may be compiled.
        return self.lm_head(normed) if shared is None else F.linear(normed, shared)


def apply_rotary(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys, [.., n, heads, d], by cosines and sines, [n, 1, d / 2]."""
    low, high = heads.chunk(2, -1)
    cos, sin = rotation
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
