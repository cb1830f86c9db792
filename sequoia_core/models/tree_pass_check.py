"""Check whether a loaded model can read a token tree."""

from typing import NamedTuple

import torch

from .finite_weights import overflow_advice
from .model_files import explain_load_errors
from .protocol import LanguageModel, Tokenizer, causal_mask, dtype_name

# Tolerances are fractions of the logits' spread. In float32, correct models differ by less than 1e-5. In low precision
# or with quantized weights, correct models differ by 0.01, wrong ones by 0.12.
TOLERANCE = 1e-3
ROUNDED_TOLERANCE = 0.05
MIN_CHANGE = 1e-6  # logits that differ by less did not depend on the change
TEXT = (
    "The old lighthouse keeper climbed the stairs every evening, lit the lamp and wrote down the weather of the day. "
    "In winter the sea was loud and few ships came by."
)
# A root with eight children: one node below the first, and a chain of two below the last.
PARENTS = (-1, *[0] * 8, 1, 8, 10)
PATHS = ([0, 1, 9], [0, 8, 10, 11])
WIDTH = len(PARENTS)
PREFIX = 8
MIN_PREFIX = 2


class _Passes(NamedTuple):
    """Logits of the compared passes, float32 [.., V] on CPU.

    Attributes:
        plain: the prefix and the last path, read as plain text.
        all_seen: the last path's rows, with all nodes read as plain text.
        prefix: the prefix through the cache.
        tree: the tree in one pass.
        misplaced: the tree with slots instead of positions; None if the model rejects such positions.
        in_order: each path in a causal pass through the cache.
    """

    plain: torch.Tensor
    all_seen: torch.Tensor
    prefix: torch.Tensor
    tree: torch.Tensor
    misplaced: torch.Tensor | None
    in_order: list[torch.Tensor]


@torch.inference_mode()
def check_tree_pass(model: LanguageModel, tokenizer: Tokenizer | None = None) -> None:
    """Raise ValueError if a model gives the nodes of a tree different logits than the same tokens in plain text.

    The cache receives a text, then a tree of twelve nodes in one pass. Three conditions must hold, where differences
    are root mean squares relative to the spread of the logits around their means:

    1. The rows of each path equal those of a causal pass through the cache that starts with that path and has the same
       number of tokens, since rounding depends on the width of a pass.
    2. Positions matter: with cache slots instead of positions, the rows differ. They do not differ in models with
       ALiBi and in models that number tokens themselves. (llama.cpp rejects such positions.)
    3. The rows of a path equal those of the model's `forward` without our cache, mask and positions. In low precision,
       where the width matters, their distance is at most half that of rows that saw all nodes, or within rounding for a
       model that hardly attends to other tokens. This detects a wrong cache.

    Args:
        tokenizer: tokenizer that encodes a text with its special tokens. None uses arbitrary ids, on which a trained
            model amplifies rounding.
    """
    name = model.name
    architecture = model.architecture
    passes = _run_passes(model, tokenizer)
    _check_logits(model, passes)
    if passes.misplaced is not None and _difference(passes.misplaced, passes.tree) < MIN_CHANGE:
        raise ValueError(
            f"{name}: found a {architecture} that ignores positions: a tree gets the same logits with different "
            "positions, expected a model that takes positions (models with ALiBi derive distances from the order in "
            "the cache)"
        )
    allowed = TOLERANCE if model.is_exact else ROUNDED_TOLERANCE
    difference = _difference(torch.cat([passes.tree[path] for path in PATHS]), torch.cat(passes.in_order))
    if not difference <= allowed:
        raise ValueError(
            f"{name}: found a {architecture} that gives the nodes of a tree different logits than the same tokens in "
            f"sequence, in passes of equal width: they differ by {difference:.2g} of their spread, expected at most "
            f"{allowed:g} (the mask or the positions may be applied to the wrong tokens)"
        )
    before = len(passes.prefix)
    if not model.is_exact:
        allowed = max(ROUNDED_TOLERANCE, 0.5 * _difference(passes.all_seen, passes.plain[before:]))
    difference = _difference(torch.cat([passes.prefix, passes.tree[PATHS[-1]]]), passes.plain)
    if not difference <= allowed:
        raise ValueError(
            f"{name}: found a {architecture} that gives a text different logits with its cache than without: they "
            f"differ by {difference:.2g} of their spread, expected at most {allowed:.2g}"
        )


def _run_passes(model: LanguageModel, tokenizer: Tokenizer | None) -> _Passes:
    before = min(PREFIX, model.max_context - WIDTH)
    if before < MIN_PREFIX:
        raise ValueError(
            f"{model.name}: found a context of {model.max_context} positions, expected at least {MIN_PREFIX + WIDTH}"
        )
    ids = _ids(tokenizer, before + WIDTH, model.vocab_size)
    prefix = ids[:before]
    nodes = ids[before:]
    slots = torch.arange(WIDTH)
    depths, tree_mask = _depths_and_mask()
    with explain_load_errors(model.name, "a model that reads plain text"):
        plain = _rows(model.plain_logits(torch.cat([prefix, nodes[PATHS[-1]]])))
        all_seen = _rows(model.plain_logits(ids))[before:][PATHS[-1]]
    model.release_buffers()
    expected = "a model that takes positions and a mask over cached tokens"
    with explain_load_errors(model.name, expected, f"a {model.architecture} that cannot read a tree"):
        session = model.open(before + WIDTH)
        read = _rows(session.forward(prefix, torch.arange(before), causal_mask(before), keep=before))

        def pass_after_prefix(tokens: torch.Tensor, depths: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            rows = _rows(session.forward(tokens, before + depths, mask, keep=WIDTH))
            session.commit(before, [])
            return rows

        tree = pass_after_prefix(nodes, depths, tree_mask)
        misplaced = pass_after_prefix(nodes, slots, tree_mask) if model.takes_any_positions else None
        in_order = []
        for path in PATHS:
            others = [node for node in range(WIDTH) if node not in path]
            in_order.append(pass_after_prefix(nodes[path + others], slots, causal_mask(WIDTH))[: len(path)])
    return _Passes(plain, all_seen, read, tree, misplaced, in_order)


def _check_logits(model: LanguageModel, passes: _Passes) -> None:
    """Raise ValueError for logits that are not finite or that are the same for every token."""
    dtype = dtype_name(model)
    compared = (passes.plain, passes.all_seen, passes.tree)
    if not all(rows.isfinite().all() for rows in (*compared, passes.prefix, *passes.in_order)):
        model.check_weights()  # not checked earlier, because it reads all streamed weights
        raise ValueError(
            f"{model.name}: found non-finite logits in {dtype}, expected finite ones{overflow_advice([dtype])}"
        )
    if not all((rows != rows[:, :1]).any() for rows in compared):
        raise ValueError(
            f"{model.name}: found the same logit for every token in {dtype}, expected logits that distinguish tokens "
            "(one very large weight can swamp all others)"
        )


def _ids(tokenizer: Tokenizer | None, count: int, vocab_size: int) -> torch.Tensor:
    """Return token ids [count] of a text, padded with arbitrary ids."""
    text = [] if tokenizer is None else [token for token in tokenizer.encode(TEXT) if token < vocab_size]
    return torch.tensor([*text, *((1 + 61 * index) % vocab_size for index in range(count))][:count])


def _depths_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    depths = [0]
    visible = torch.eye(WIDTH, dtype=torch.bool)
    for node, parent in enumerate(PARENTS[1:], start=1):
        depths.append(depths[parent] + 1)
        visible[node] |= visible[parent]
    return torch.tensor(depths), torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def _rows(logits: torch.Tensor) -> torch.Tensor:
    return logits.cpu().float().clone()  # a session's logits are valid only until its next pass


def _difference(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the root mean square difference relative to the spread of the wanted rows around their means."""
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    return float((actual - wanted).norm() / spread)
