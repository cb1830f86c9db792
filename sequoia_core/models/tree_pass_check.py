"""Whether a model can read a token tree, found out by running one: every model is asked when it is loaded."""

from __future__ import annotations

import torch

from .model_files import explained
from .protocol import LoadedModel, causal_mask

TREE_TOLERANCE = 1e-3  # how far float32 logits of a tree pass may lie from those of plain passes
ROUNDED_TREE_TOLERANCE = 0.05  # the same for formats of fewer digits, quantised weights among them


@torch.inference_mode()
def check_tree_pass(model: LoadedModel) -> None:
    """Refuse a model that gives the nodes of a tree other logits than the same tokens get in plain text.

    Four tokens go into a cache, then a tree of twelve nodes in one pass: a root, eight children, and below the first
    and the last of them a chain of one and of two. Its logits are compared with plain passes of the two paths, without
    cache, mask or positions of ours. Children's places in the cache differ from their positions by up to seven, so a
    model that derives distances from places (ALiBi) or numbers tokens itself gives itself away.

    The difference is measured as the root of its mean square over that of the logits around their means, and may be
    1e-3 in float32, where right models stay below 1e-5. In bfloat16, float16 and quantised formats it may be 0.05:
    rounding alone makes 0.01 in the demo pair, ignored positions 0.2 and more.

    Raises:
        ValueError: naming the model and the reason.
    """
    name = model.name
    if model.max_context < 8:
        raise ValueError(f"{name}: found a context of {model.max_context} positions, expected at least 8")
    ids = torch.tensor([(1 + 61 * place) % model.vocab_size for place in range(16)])
    parents = [-1, *[0] * 8, 1, 8, 10]
    depths: list[int] = []
    visible = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        if parent >= 0:
            visible[node] |= visible[parent]
    first, last = [0, 1, 9], [0, 8, 10, 11]
    kind = model.kind
    expected = "a model that takes positions and a mask over its cached tokens (models with ALiBi do not)"
    with explained(name, "a model that reads plain text"):
        plain = [model.plain_logits(torch.cat([ids[:4], ids[4:][path]])) for path in (first, last)]
    model.rest()
    with explained(name, expected, f"a {kind} that cannot read a tree"):
        session = model.open(len(ids))
        prefix = session.forward(ids[:4], torch.arange(4), causal_mask(4), keep=4).clone()
        tree_mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        tree = session.forward(ids[4:], 4 + torch.tensor(depths), tree_mask, keep=len(parents))
    found = torch.cat([prefix, tree[first], tree[last]]).cpu().double()
    wanted = torch.cat([plain[0], plain[1][4:]]).cpu().double()
    if not (wanted.isfinite().all() and found.isfinite().all()):
        raise ValueError(f"{name}: found logits that are not finite, expected finite ones")
    allowed = TREE_TOLERANCE if model.is_exact else ROUNDED_TREE_TOLERANCE
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    difference = (found - wanted).norm()
    if not difference <= allowed * spread:
        raise ValueError(
            f"{name}: found a {kind} that ignores the positions or the mask of a tree: its logits differ from those in "
            f"plain text by {difference / spread:.2g} of their spread, expected at most {allowed:g} (models with ALiBi "
            "derive distances from the order in the cache)"
        )
