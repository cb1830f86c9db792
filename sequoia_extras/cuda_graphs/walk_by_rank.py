"""The walk through a tree on the device, for all nodes at once.

n = number of nodes, m = number of nodes that may have children, K = maximum number of children, V = vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_core.decoding.draws import invert
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.residuals import remaining_masses


class RankedTree(NamedTuple):
    """A tree laid out for the walk on the device.

    Attributes:
        order: int64 [n], the nodes in descending order of their number of children.
        positions: int64 [n], each node's index in `order`.
        children: int64 [n, K], the children of the nodes in `order`; 0 for no child.
        rows: int64 [n], the index of the draft row of each node in `order`; arbitrary for leaves.
    """

    order: Tensor
    positions: Tensor
    children: Tensor
    rows: Tensor

    @classmethod
    def from_plan(cls, plan: TreePlan, cache_positions: Tensor, size: int, most_children: int) -> RankedTree:
        """Lay out a tree on the CPU, padded to `size` with unreachable nodes."""
        counts, firsts = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        counts[: plan.tree.size] = torch.from_numpy(plan.child_counts)
        firsts[: plan.tree.size] = torch.from_numpy(plan.first_children)
        order = counts.argsort(descending=True, stable=True)
        ranks = torch.arange(most_children)
        children = torch.where(ranks < counts[order, None], firsts[order, None] + ranks, 0)
        rows = torch.zeros(size, dtype=torch.int64)
        rows[: plan.tree.size] = cache_positions.clamp_min(0)
        return cls(order, order.argsort(), children, rows[order])

    def path(self, accepted: Tensor, depth: int) -> Tensor:
        """Return the path, int64 [depth + 1], along first accepted children; `accepted` is bool [n, K]."""
        chosen = self.children.gather(1, accepted.int().argmax(1, keepdim=True))[:, 0]
        following = torch.where(accepted.any(1), chosen, self.order)[self.positions]
        path = [torch.zeros_like(self.order[:1])]
        for _ in range(depth):
            path.append(following[path[-1]])
        return torch.cat(path)


class Decision(NamedTuple):
    """The result of a walk.

    Attributes:
        path: int64 [depth + 1], padded with its last node.
        bonus: int64 [1], the bonus token.
        masses: float64 [n, 2], each node's target mass and draft mass when it was offered.
    """

    path: Tensor
    bonus: Tensor
    masses: Tensor


def follow_by_rank(tree: RankedTree, tokens: Tensor, wanted: Tensor, *, depth: int) -> Decision:
    """Descend along children that match the target's tokens; `tokens` and `wanted`, the target's, are int64 [n]."""
    accepted = (tokens[tree.children] == wanted[tree.order, None]) & (tree.children > 0)
    path = tree.path(accepted, depth)
    masses = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    masses = masses.index_copy(0, tree.children.flatten(), accepted.flatten().double())
    return Decision(path, wanted[path[-1:]], torch.stack([masses, torch.ones_like(masses)], 1))


def walk_by_rank(
    tree: RankedTree,
    tokens: Tensor,
    target: Tensor,
    draft: Tensor,
    uniforms: Tensor,
    *,
    depth: int,
    first: Tensor | None = None,
    counts: Sequence[int] = (),
) -> Decision:
    """Descend by Sequoia's rule while a child is accepted, then sample the bonus token.

    Args:
        target: float64 [n, V], the target's normalized row for every node.
        draft: float64 [.., V], the draft's rows, indexed by `tree.rows`.
        uniforms: float64 [n] in [0, 1), for the trial of each node; the root's number draws the bonus token.
        first: like `draft`, the rows from which first children were drawn; None if these are the rows of `draft`.
        counts: upper bounds on the number of nodes with more than k children, for each k; () for bounds that hold for
            any tree.
    """
    left, masses = offer_children(tree, tokens, target, draft, first, counts)
    accepted = (uniforms * masses[:, 1] < masses[:, 0])[tree.children] & (tree.children > 0)
    path = tree.path(accepted, depth)
    cumulative = left.rows(tree.positions[path[-1:]]).cumsum(1)
    return Decision(path, invert(cumulative, uniforms[:1, None])[:, 0], masses)


class RemainingTarget(NamedTuple):
    """The target's remaining distribution at each node once all its children are rejected.

    Nodes are in the order of `RankedTree.order`, except in `target`.

    Attributes:
        target: float64 [n, V], the target's rows, indexed by node.
        order: int64 [n], see `RankedTree`.
        inner: float64 [m, V], rows that replace those of the target for nodes that may have children.
        draft: float64 [m, V], the draft's rows for these nodes.
        state: float64 [n, 3], `scale`, `offset` and remaining mass as in `residuals.Residuals`.
    """

    target: Tensor
    order: Tensor
    inner: Tensor
    draft: Tensor
    state: Tensor

    def rows(self, positions: Tensor) -> Tensor:
        """Return normalized rows, float64 [.., V]; `positions`, int64 [..], are indices in `order`."""
        inner_index = positions.clamp_max(len(self.inner) - 1)
        scale, offset, left = self.state[positions].split(1, 1)
        over = self.inner[inner_index] - scale * self.draft[inner_index] - offset
        unchanged = self.target[self.order[positions]]
        return torch.where((positions < len(self.inner))[:, None], over.clamp_min(0.0) / left, unchanged)


def offer_children(
    tree: RankedTree,
    tokens: Tensor,
    target: Tensor,
    draft: Tensor,
    first: Tensor | None = None,
    counts: Sequence[int] = (),
) -> tuple[RemainingTarget, Tensor]:
    """Offer every child of every node as if its earlier siblings had been rejected, like `residuals.Residuals`.

    Return the target's remaining distributions once all children are rejected, and the masses of `Decision`.
    """
    size, most = tree.children.shape
    counts = counts or [size // (k + 1) for k in range(most)]
    m = counts[0]
    device = tokens.device
    children = tree.children[:m]
    exists = tree.children[:m] > 0
    drawn = tokens[torch.where(exists, children, children[:, :1])]
    rows = draft[tree.rows[:m]]
    inner = target[tree.order[:m]]
    mass = remaining_masses(rows, drawn, exists)
    even = 1.0 / (rows.shape[1] - torch.arange(most, dtype=torch.float64, device=device)).clamp_min(1.0)
    wanted = inner.gather(1, drawn)
    given = rows.gather(1, drawn)
    per_mass = mass.clamp_min(1e-300).reciprocal()
    # These are the increases of scale and offset after a rejection, relative to the remaining mass.
    to_scale = torch.where(mass > 0, per_mass, 0.0)
    to_offset = torch.where(mass > 0, 0.0, even).masked_fill(~exists, torch.inf)
    state = torch.zeros(size, 3, dtype=torch.float64, device=device)
    state[:, 2] = 1.0
    # The state before each offer, [m, K, 3].
    before = state[:m, None].repeat(1, most, 1)
    if first is not None:
        first_offered = first[tree.rows[:m]]
        given[:, :1] = first_offered.gather(1, drawn[:, :1])
    for k, count in enumerate(counts):
        current = state[:count]
        before[:count, k] = current
        scale, offset, left = current.split(1, 1)
        if first is not None and k == 0:
            over = (inner - first_offered).clamp_min_(0.0)
            fresh = over.sum(1, keepdim=True) * exists[:, :1]
            inner = torch.where(fresh > 0, over, inner)
            wanted[:, 1:] = inner.gather(1, drawn[:, 1:])
        else:
            scale = torch.addcmul(scale, left, to_scale[:count, k : k + 1])
            offset = torch.addcmul(offset, left, to_offset[:count, k : k + 1])
            over = (inner[:count] - offset).addcmul_(scale, rows[:count], value=-1.0).clamp_min_(0.0)
            fresh = over.sum(1, keepdim=True)
        # If no mass would remain, the residual stays unchanged.
        current.copy_(torch.where(fresh > 0, torch.cat([scale, offset, fresh], 1), current))
    scale, offset, left = before.unbind(2)
    target_masses = (wanted - scale * given - offset).clamp_min(0.0) / left
    draft_masses = torch.where(mass > 0, given * per_mass, even).clamp_min(1e-300)
    masses = _masses_by_child(tree, target_masses, draft_masses)
    return RemainingTarget(target, tree.order, inner, rows, state), masses


def _masses_by_child(tree: RankedTree, target_masses: Tensor, draft_masses: Tensor) -> Tensor:
    """Return both masses of each child, [n, 2], given the masses offered at the first m nodes in order, [m, K]."""
    children = tree.children[: len(target_masses)]
    masses = torch.stack([target_masses, draft_masses], 2).masked_fill_((children == 0)[..., None], 0.0)
    by_child = torch.zeros(len(tree.order), 2, dtype=torch.float64, device=children.device)
    return by_child.index_copy_(0, children.flatten(), masses.flatten(0, 1))
