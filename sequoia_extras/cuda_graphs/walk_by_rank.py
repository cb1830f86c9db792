"""The walk through a tree on the device, for all nodes at once.

n = number of nodes, m = number of nodes that may have children, K = maximum number of children, V = vocabulary size,
T = number of steps of a walk from the leaves, W = maximum number of children offered in one of these steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sequoia_core.decoding.draws import invert
from sequoia_core.decoding.plan import TreePlan, padded
from sequoia_core.decoding.residuals import remaining_masses
from sequoia_core.decoding.sampling import SMALL_SHARE


class TreeShape(NamedTuple):
    """The shape of one tree, or bounds on the shapes of many trees.

    Attributes:
        size: n, padded.
        levels: number of levels, padded.
        counts: for each k, the maximum number of nodes with more than k children, at least 1.
        widths: number of children offered in each step of a walk from the leaves; () for other walks.
        is_exact: whether these are the numbers of one tree rather than bounds.
    """

    size: int
    levels: int
    counts: tuple[int, ...]
    widths: tuple[int, ...] = ()
    is_exact: bool = False

    @classmethod
    def from_plan(cls, plan: TreePlan, *, is_exact: bool, from_leaves: bool) -> TreeShape:
        size = padded(plan.tree.size)
        levels = padded(plan.tree.depth + 1)
        most = max(1, int(plan.child_counts.max()))
        widths = np.bincount(_offer_steps(plan)[1:]).tolist() if from_leaves else []
        if is_exact:
            counts = tuple(max(1, int((plan.child_counts > k).sum())) for k in range(most))
            return cls(size, levels, counts, tuple(widths), is_exact)
        counts = tuple(size // (k + 1) for k in range(padded(most)))
        return cls(size, levels, counts, (padded(max(widths)),) * padded(len(widths)) if widths else ())


def _offer_steps(plan: TreePlan) -> np.ndarray:
    """Return the step in which a walk from the leaves offers each node, int64 [n]; -1 for the root.

    A node's children are offered one by one in the steps after its own, at the same time as those of other nodes.
    """
    steps = np.full(plan.tree.size, -1, dtype=np.int64)
    ranks = plan.tree.child_ranks
    for level in plan.tree.levels[1:]:
        steps[level] = steps[plan.tree.parents[level]] + ranks[level]
    return steps


class RankedTree(NamedTuple):
    """A tree laid out for the walk on the device.

    Attributes:
        order: int64 [n], the nodes in descending order of their number of children.
        positions: int64 [n], each node's index in `order`.
        children: int64 [n, K], the children of the nodes in `order`; 0 for no child.
        rows: int64 [n], the index of the draft row of each node in `order`; arbitrary for leaves.
        offers: int64 [3, T, W], the children that a walk from the leaves offers in each step, and the indices in
            `order` of these children and of their parents; padded with 0, n and n.
    """

    order: Tensor
    positions: Tensor
    children: Tensor
    rows: Tensor
    offers: Tensor

    @classmethod
    def from_plan(cls, plan: TreePlan, cache_positions: Tensor, shape: TreeShape) -> RankedTree:
        """Lay out a tree on the CPU, padded with unreachable nodes."""
        size = shape.size
        counts, firsts = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        counts[: plan.tree.size] = torch.from_numpy(plan.child_counts)
        firsts[: plan.tree.size] = torch.from_numpy(plan.first_children)
        order = counts.argsort(descending=True, stable=True)
        ranks = torch.arange(len(shape.counts))
        children = torch.where(ranks < counts[order, None], firsts[order, None] + ranks, 0)
        rows = torch.zeros(size, dtype=torch.int64)
        rows[: plan.tree.size] = cache_positions.clamp_min(0)
        positions = order.argsort()
        offers = torch.full((3, len(shape.widths), max(shape.widths, default=0)), size)
        offers[0] = 0
        if shape.widths:
            steps = _offer_steps(plan)
            nodes = steps.argsort(kind="stable")[1:]
            steps = steps[nodes]
            columns = np.arange(len(steps)) - np.searchsorted(steps, steps)
            parents = plan.tree.parents[nodes]
            offers[:, steps, columns] = torch.from_numpy(np.stack([nodes, positions[nodes], positions[parents]]))
        return cls(order, positions, children, rows[order], offers)

    def path(self, accepted: Tensor, depth: int) -> Tensor:
        """Return the path, int64 [depth + 1], along first accepted children; `accepted` is bool [n, K]."""
        accepted = accepted & (self.children > 0)
        chosen = self.children.gather(1, accepted.int().argmax(1, keepdim=True))[:, 0]
        following = torch.where(accepted.any(1), chosen, self.order)[self.positions]
        path = [torch.zeros_like(self.order[:1])]
        for _ in range(depth):
            path.append(following[path[-1]])
        return torch.cat(path)


class ScoredNodes(NamedTuple):
    """What a walk decides on.

    Attributes:
        tokens: int64 [n], the drafted tokens.
        target: float64 [n, V], the target's normalized row for every node.
        draft: float [.., V], the draft's rows, indexed by `RankedTree.rows`.
        uniforms: float64 [n] in [0, 1), for the trial of each node; the root's number draws the bonus token.
        first: like `draft`, the rows from which first children were drawn; None if these are the rows of `draft`.
    """

    tokens: Tensor
    target: Tensor
    draft: Tensor
    uniforms: Tensor
    first: Tensor | None = None


class Decision(NamedTuple):
    """The result of a walk.

    Attributes:
        path: int64 [levels], padded with its last node.
        bonus: int64 [1], the bonus token.
        masses: float64 [n, 2], the two masses of each node's `Trial`; 0 and 0 if there can be no trial.
    """

    path: Tensor
    bonus: Tensor
    masses: Tensor


def follow_by_rank(tree: RankedTree, tokens: Tensor, wanted: Tensor, shape: TreeShape) -> Decision:
    """Descend along children that match the target's tokens; `tokens` and `wanted`, the target's, are int64 [n]."""
    accepted = tokens[tree.children] == wanted[tree.order, None]
    path = tree.path(accepted, shape.levels - 1)
    masses = _by_child(tree.children, torch.stack([accepted, torch.ones_like(accepted)], 2).double(), shape.size)
    return Decision(path, wanted[path[-1:]], masses)


def follow_samples(tree: RankedTree, nodes: ScoredNodes, shape: TreeShape) -> Decision:
    """Sample a target token after every node, and descend along the children that match these tokens."""
    wanted = invert(nodes.target.cumsum(1), nodes.uniforms[:, None])[:, 0]
    return follow_by_rank(tree, nodes.tokens, wanted, shape)


def walk_by_rank(tree: RankedTree, nodes: ScoredNodes, shape: TreeShape, *, replaced: bool = False) -> Decision:
    """Descend by Sequoia's rule, or by SpecInfer's, while a child is accepted, then sample the bonus token.

    Args:
        replaced: whether children were drawn with replacement, as SpecInfer's rule assumes.
    """
    left, masses = offer_children(tree, nodes, shape, replaced)
    accepted = (nodes.uniforms * masses[:, 1] < masses[:, 0])[tree.children]
    path = tree.path(accepted, shape.levels - 1)
    cumulative = left.rows(tree.positions[path[-1:]]).cumsum(1)
    return Decision(path, invert(cumulative, nodes.uniforms[:1, None])[:, 0], masses)


def ascend_by_rank(tree: RankedTree, nodes: ScoredNodes, shape: TreeShape) -> Decision:
    """Ascend from the leaves until a path is kept, then sample the bonus token, like `walk.walk_from_leaves`.

    The path ends at the first node in post-order that is kept, so at each node it continues into the first child whose
    subtree contains one that is kept.
    """
    left, masses = offer_subtrees(tree, nodes, shape)
    is_kept = nodes.uniforms < masses[:, 0]
    contains_kept = is_kept
    for _ in range(shape.levels - 1):
        below = (contains_kept[tree.children] & (tree.children > 0)).any(1)
        contains_kept = is_kept | below[tree.positions]
    path = tree.path(contains_kept[tree.children], shape.levels - 1)
    cumulative = left[tree.positions[path[-1:]]].cumsum(1)
    return Decision(path, invert(cumulative, nodes.uniforms[:1, None])[:, 0], masses)


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
    tree: RankedTree, nodes: ScoredNodes, shape: TreeShape, replaced: bool
) -> tuple[RemainingTarget, Tensor]:
    """Offer every child of every node as if its earlier siblings had been rejected, like `residuals.Residuals`.

    Return the target's remaining distributions once all children are rejected, and the masses of `Decision`.
    """
    m = shape.counts[0]
    children = tree.children[:m]
    exists = children > 0
    drawn = nodes.tokens[torch.where(exists, children, children[:, :1])]
    rows = _normalized(nodes.draft[tree.rows[:m]])
    inner = nodes.target[tree.order[:m]]
    mass = torch.ones_like(drawn, dtype=torch.float64) if replaced else remaining_masses(rows, drawn, exists)
    ranks = torch.arange(drawn.shape[1], dtype=torch.float64, device=rows.device)
    even = 1.0 / (rows.shape[1] - ranks).clamp_min(1.0)
    wanted = inner.gather(1, drawn)
    given = rows.gather(1, drawn)
    per_mass = mass.clamp_min(1e-300).reciprocal()
    # These are the increases of scale and offset after a rejection, relative to the remaining mass.
    to_scale = torch.where(mass > 0, per_mass, 0.0)
    to_offset = torch.where(mass > 0, 0.0, even).masked_fill(~exists, torch.inf)
    state = inner.new_zeros(shape.size, 3)
    state[:, 2] = 1.0
    # The state before each offer, [m, K, 3].
    before = state[:m, None].repeat(1, len(shape.counts), 1)
    if nodes.first is not None:
        first_offered = _normalized(nodes.first[tree.rows[:m]])
        given[:, :1] = first_offered.gather(1, drawn[:, :1])
    for k, count in enumerate(shape.counts):
        current = state[:count]
        before[:count, k] = current
        scale, offset, left = current.split(1, 1)
        if nodes.first is not None and k == 0:
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
    masses = _by_child(children, torch.stack([target_masses, draft_masses], 2), shape.size)
    return RemainingTarget(nodes.target, tree.order, inner, rows, state), masses


def offer_subtrees(tree: RankedTree, nodes: ScoredNodes, shape: TreeShape) -> tuple[Tensor, Tensor]:
    """Offer every child of every node with its subtree, as if all nodes before it in post-order had been rejected.

    This is `verifiers.traversal_rule`. Return the nodes' unnormalized residuals, in order, once all their children are
    rejected, float64 [n + 1, V], and the masses of `Decision`. Padded offers change only the last row.
    """
    m = shape.counts[0]
    left = nodes.target[torch.cat([tree.order, tree.order[:1]])]
    rows = torch.cat([tree.rows[:m], tree.rows[:1]])
    # Once a row is exhausted, the small number makes it uniform over the tokens that were not drawn.
    remaining = _normalized(nodes.draft[rows]) + 1e-300
    first = None if nodes.first is None else _normalized(nodes.first[rows])
    # For each node in order: the factor that normalizes its row of `left`, that row's sum, which is the probability of
    # keeping the node or one below a child not yet offered, and this probability before its first child was offered.
    state = left.new_zeros(shape.size + 1, 3)
    state.index_fill_(0, tree.positions[:1], 1.0)
    has_trial = left.new_zeros(shape.size, 1)
    for step, width in enumerate(shape.widths):
        child, position, parent = tree.offers[:, step, :width]
        token = nodes.tokens[child][:, None]
        factor, share, kept = state[parent].split(1, 1)
        has_trial.index_copy_(0, child, kept.sign())
        residual = left[parent] * factor
        law = _normalized(remaining[parent])
        remaining.view(-1).index_fill_(0, parent * law.shape[1] + token[:, 0], 0.0)
        if first is not None:
            is_first = tree.children[parent.clamp_max(m - 1), :1] == child[:, None]
            law = torch.where(is_first, first[parent], law)
        accept = (residual.gather(1, token) / law.gather(1, token).clamp_min(1e-300)).clamp_max(1.0)
        state.index_copy_(0, position, accept.repeat(1, 3))
        # See `sampling.residual_share`.
        over = (residual - law).clamp_min_(0.0)
        total = over.sum(1, keepdim=True)
        refused = (1.0 - share).clamp_min(0.0)
        is_changed = (total > 0) | (refused >= SMALL_SHARE)
        factor = torch.where(is_changed, 1.0 / (total + refused), 1.0)
        share = torch.where(is_changed, total * factor, share)
        state.index_copy_(0, parent, torch.cat([factor, share, kept], 1))
        left.index_copy_(0, parent, torch.where(is_changed, over, residual))
    return left, torch.cat([state[tree.positions, 1:2], has_trial], 1)


def _by_child(children: Tensor, values: Tensor, count: int) -> Tensor:
    """Return the values of each child, float64 [count, c]; `children` is [m, K], and `values` is float64 [m, K, c]."""
    values = values.masked_fill((children == 0)[..., None], 0.0)
    by_child = values.new_zeros(count, values.shape[2])
    return by_child.index_copy_(0, children.flatten(), values.flatten(0, 1))


def _normalized(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows / rows.sum(1, keepdim=True)
