"""Whether a model can read a token tree, tested by running one when it is loaded."""

import torch

from .finite_weights import overflow_words
from .model_files import explained
from .protocol import LanguageModel, Tokenizer, causal_mask, dtype_name

TOLERANCE = 1e-3  # of the spread of float32 logits, where right models differ by less than 1e-5
ROUNDED_TOLERANCE = 0.05  # in fewer digits or quantised, where right models differ by 0.01 and wrong ones by 0.12
MIN_CHANGE = 1e-6  # logits that differ by less did not notice what changed
TEXT = (
    "The old lighthouse keeper climbed the stairs every evening, lit the lamp and wrote down the weather of the day. "
    "In winter the sea was loud and few ships came by."
)
PARENTS = (-1, *[0] * 8, 1, 8, 10)  # a root, eight children, a chain of one below the first and of two below the last
PATHS = ([0, 1, 9], [0, 8, 10, 11])
WIDTH, PREFIX, SHORTEST_PREFIX = len(PARENTS), 8, 2  # tokens


@torch.inference_mode()
def check_tree_pass(model: LanguageModel, tokenizer: Tokenizer | None = None) -> None:
    """Refuse a model that gives the nodes of a tree other logits than the same tokens get in plain text.

    A text goes into a cache, then a tree of twelve nodes in one pass. Three things have to hold; differences are roots
    of mean squares, as a share of the spread of the logits around their means:

    1. The rows of each path are those of a causal pass through the cache that begins with that path and has as many
       tokens, since rounding depends on the width of a pass.
    2. Slots of the cache in place of positions give other rows. They do not in models with ALiBi and in models that
       number tokens themselves. (llama.cpp takes no such positions.)
    3. The rows of a path are those of the model's own forward, without cache, mask and positions of ours: in formats of
       few digits, where widths matter, half as far from them as rows that saw all nodes, or as near as rounding brings
       a model that hardly looks at other tokens. A wrong cache shows here.

    Args:
        tokenizer: makes the ids of a text, with its special tokens. None takes ids that are no text; a trained model
            amplifies rounding on those.
    """
    name, kind = model.name, model.kind
    before = min(PREFIX, model.max_context - WIDTH)
    if before < SHORTEST_PREFIX:
        raise ValueError(
            f"{name}: found a context of {model.max_context} positions, expected at least {SHORTEST_PREFIX + WIDTH}"
        )
    ids = _ids(tokenizer, before + WIDTH, model.vocab_size)
    prefix, nodes, slots = ids[:before], ids[before:], torch.arange(WIDTH)
    depths, tree_mask = _depths_and_mask()
    with explained(name, "a model that reads plain text"):
        plain = _rows(model.plain_logits(torch.cat([prefix, nodes[PATHS[-1]]])))
        all_seen = _rows(model.plain_logits(ids))[before:][PATHS[-1]]
    model.rest()
    expected = "a model that takes positions and a mask over its cached tokens, keys and values alike in all layers"
    with explained(name, expected, f"a {kind} that cannot read a tree"):
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
    if not all(rows.isfinite().all() for rows in (plain, all_seen, read, tree, *in_order)):
        model.check_weights()  # else all that stream would be looked at in every load
        dtype = dtype_name(model)
        raise ValueError(
            f"{name}: found logits that are not finite in {dtype}, expected finite ones{overflow_words([dtype])}"
        )
    if not all((rows != rows[:, :1]).any() for rows in (plain, all_seen, tree)):
        raise ValueError(
            f"{name}: found the same logit for every token in {dtype_name(model)}, expected logits that tell tokens "
            "apart (one very large weight can drown all others)"
        )
    if misplaced is not None and _difference(misplaced, tree) < MIN_CHANGE:
        raise ValueError(
            f"{name}: found a {kind} that ignores the positions it is given: a tree gets the same logits with others, "
            "expected a model that takes positions (models with ALiBi derive distances from the order in the cache)"
        )
    allowed = TOLERANCE if model.is_exact else ROUNDED_TOLERANCE
    found = _difference(torch.cat([tree[path] for path in PATHS]), torch.cat(in_order))
    if not found <= allowed:
        raise ValueError(
            f"{name}: found a {kind} that reads the nodes of a tree otherwise than the same tokens one after another, "
            f"in passes of one width: logits differ by {found:.2g} of their spread, expected at most {allowed:g} (is "
            "the mask, or are positions, applied to another token?)"
        )
    loose = max(ROUNDED_TOLERANCE, 0.5 * _difference(all_seen, plain[before:]))
    allowed = TOLERANCE if model.is_exact else loose
    found = _difference(torch.cat([read, tree[PATHS[-1]]]), plain)
    if not found <= allowed:
        raise ValueError(
            f"{name}: found a {kind} that reads a text through its cache otherwise than at once: logits differ by "
            f"{found:.2g} of their spread, expected at most {allowed:.2g}"
        )


def _ids(tokenizer: Tokenizer | None, count: int, vocab_size: int) -> torch.Tensor:
    """Return ids [count] of a text, padded by ids that are no text."""
    text = [] if tokenizer is None else [token for token in tokenizer.encode(TEXT) if token < vocab_size]
    return torch.tensor([*text, *((1 + 61 * index) % vocab_size for index in range(count))][:count])


def _depths_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    depths, visible = [0], torch.eye(WIDTH, dtype=torch.bool)
    for node, parent in enumerate(PARENTS[1:], start=1):
        depths.append(depths[parent] + 1)
        visible[node] |= visible[parent]
    return torch.tensor(depths), torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def _rows(logits: torch.Tensor) -> torch.Tensor:
    return logits.cpu().float().clone()  # a session's logits are valid until its next pass


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the root mean square of a difference over the spread of the wanted rows around their means."""
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    return float((found - wanted).norm() / spread)
