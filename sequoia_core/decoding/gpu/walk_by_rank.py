"""The walk down a tree on the device, all nodes at once. n = nodes, K = most children of one node, V = vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..plan import TreePlan
from ..residuals import remaining_masses
from ..sampling import invert


class RankedTree(NamedTuple):
    """A tree as the walk reads it, on the device; all int64.

    Attributes:
        order: [n], the nodes, those with more children first.
        positions: [n], where each node is in `order`.
        children: [n, K], of the nodes in that order; 0 where there is none.
        rows: [n], which row of the draft's the nodes in that order have; any for those without children.
    """

    order: torch.Tensor
    positions: torch.Tensor
    children: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def of(cls, plan: TreePlan, cache_positions: torch.Tensor, size: int, most_children: int) -> RankedTree:
        """Describe a tree on the CPU, padded to a size by unreachable nodes."""
        counts, firsts = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        counts[: plan.tree.size] = torch.from_numpy(plan.child_counts)
        firsts[: plan.tree.size] = torch.from_numpy(plan.first_children)
        order, ranks = counts.argsort(descending=True, stable=True), torch.arange(most_children)
        children = torch.where(ranks < counts[order, None], firsts[order, None] + ranks, 0)
        rows = torch.zeros(size, dtype=torch.int64)
        rows[: plan.tree.size] = cache_positions.clamp_min(0)
        return cls(order, order.argsort(), children, rows[order])

    def path(self, accepted: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the path from the root by the first child accepted (bool [n, K]), int64 [depth + 1]."""
        chosen = self.children.gather(1, accepted.int().argmax(1, keepdim=True))[:, 0]
        following = torch.where(accepted.any(1), chosen, self.order)[self.positions]
        path = [torch.zeros_like(self.order[:1])]
        for _ in range(depth):
            path.append(following[path[-1]])
        return torch.cat(path)


class Decision(NamedTuple):
    """Attributes: path, int64 [depth + 1]; bonus, int64 [1]; masses, float64 [n, 2], R[s] and D[s] of every child."""

    path: torch.Tensor
    bonus: torch.Tensor
    masses: torch.Tensor


def follow_by_rank(tree: RankedTree, tokens: torch.Tensor, wanted: torch.Tensor, *, depth: int) -> Decision:
    """Descend to the child that equals the target's choice after each node; `tokens` and `wanted` int64 [n]."""
    accepted = (tokens[tree.children] == wanted[tree.order, None]) & (tree.children > 0)
    path = tree.path(accepted, depth)
    masses = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    masses = masses.index_copy(0, tree.children.flatten(), accepted.flatten().double())
    return Decision(path, wanted[path[-1:]], torch.stack([masses, torch.ones_like(masses)], 1))


def walk_by_rank(
    tree: RankedTree,
    tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor,
    uniforms: torch.Tensor,
    *,
    depth: int,
    first: torch.Tensor | None = None,
    counts: Sequence[int] = (),
) -> Decision:
    """Descend by Sequoia's rule as long as a child is accepted, then sample the bonus token.

    Args:
        target: float64 [n, V], rows P of every node, summing to 1.
        draft: float64 [.., V], rows Q as `tree.rows` numbers them.
        uniforms: float64 [n] in [0, 1), for the trial of each node and, at the root, for the bonus token.
        first: as `draft`, the rows that first children were drawn from; None for Q.
        counts: K, how many nodes have more than k children, at most; () for what any tree of n nodes may have.
    """
    left, masses = offers_by_rank(tree, tokens, target, draft, first, counts)
    accepted = (uniforms * masses[:, 1] < masses[:, 0])[tree.children] & (tree.children > 0)
    path = tree.path(accepted, depth)
    cumulative = left.rows(tree.positions[path[-1:]]).cumsum(1)
    return Decision(path, invert(cumulative, uniforms[:1, None])[:, 0], masses)


class Left(NamedTuple):
    """What the target has left at each node, in the tree's order, once all of its children are rejected.

    Attributes:
        target: float64 [n, V], of all nodes, in their own order; `order` as in `RankedTree`.
        inner: float64 [m, V], what takes the target's place at those that may have children.
        draft: float64 [m, V].
        state: float64 [n, 3]: `scale`, `offset` and `left` as in `residuals.Residuals`.
    """

    target: torch.Tensor
    order: torch.Tensor
    inner: torch.Tensor
    draft: torch.Tensor
    state: torch.Tensor

    def rows(self, which: torch.Tensor) -> torch.Tensor:
        """Return float64 [.., V] of nodes int64 [..], as the tree's order numbers them."""
        of_inner = which.clamp_max(len(self.inner) - 1)
        scale, offset, left = self.state[which].split(1, 1)
        over = self.inner[of_inner] - scale * self.draft[of_inner] - offset
        whole = self.target[self.order[which]]
        return torch.where((which < len(self.inner))[:, None], over.clamp_min(0.0) / left, whole)


def offers_by_rank(
    tree: RankedTree,
    tokens: torch.Tensor,
    target: torch.Tensor,
    draft: torch.Tensor,
    first: torch.Tensor | None = None,
    counts: Sequence[int] = (),
) -> tuple[Left, torch.Tensor]:
    """Offer all children at every node, as if those before them had been rejected; as `residuals.Residuals` does.

    Returns what the target has left once all are rejected, and the masses of `Decision`.
    """
    size, most = tree.children.shape
    counts = counts or [size // (k + 1) for k in range(most)]  # those with more children come first
    m, device = counts[0], tokens.device
    children, there = tree.children[:m], tree.children[:m] > 0
    drawn = tokens[torch.where(there, children, children[:, :1])]
    rows, inner = draft[tree.rows[:m]], target[tree.order[:m]]
    mass = remaining_masses(rows, drawn, there)
    even = 1.0 / (rows.shape[1] - torch.arange(most, dtype=torch.float64, device=device)).clamp_min(1.0)
    wanted, given, per_mass = inner.gather(1, drawn), rows.gather(1, drawn), mass.clamp_min(1e-300).reciprocal()
    to_scale = torch.where(mass > 0, per_mass, 0.0)  # what a rejection adds to it, times what is left
    to_offset = torch.where(mass > 0, 0.0, even).masked_fill(~there, torch.inf)
    state = torch.zeros(size, 3, dtype=torch.float64, device=device)
    state[:, 2] = 1.0
    before = state[:m, None].repeat(1, most, 1)  # each offer
    if first is not None:
        offered_first = first[tree.rows[:m]]
        given[:, :1] = offered_first.gather(1, drawn[:, :1])
    for k, count in enumerate(counts):
        own = state[:count]
        before[:count, k] = own
        scale, offset, left = own.split(1, 1)
        if first is not None and k == 0:
            over = (inner - offered_first).clamp_min_(0.0)
            fresh = over.sum(1, keepdim=True) * there[:, :1]
            inner = torch.where(fresh > 0, over, inner)
            wanted[:, 1:] = inner.gather(1, drawn[:, 1:])
        else:
            scale = torch.addcmul(scale, left, to_scale[:count, k : k + 1])
            offset = torch.addcmul(offset, left, to_offset[:count, k : k + 1])
            over = (inner[:count] - offset).addcmul_(scale, rows[:count], value=-1.0).clamp_min_(0.0)
            fresh = over.sum(1, keepdim=True)
        own.copy_(torch.where(fresh > 0, torch.cat([scale, offset, fresh], 1), own))  # else the residual stays
    scale, offset, left = before.unbind(2)
    masses = torch.stack(
        [
            (wanted - scale * given - offset).clamp_min(0.0) / left,
            torch.where(mass > 0, given * per_mass, even).clamp_min(1e-300),  # as `walk_tree` has it
        ],
        2,
    ).masked_fill_(~there[..., None], 0.0)
    flat = torch.zeros(size, 2, dtype=torch.float64, device=device)
    return Left(target, tree.order, inner, rows, state), flat.index_copy_(0, children.flatten(), masses.flatten(0, 1))
