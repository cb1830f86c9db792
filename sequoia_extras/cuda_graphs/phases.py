"""Work with fixed shapes, as CUDA graphs require: values that change between steps are in buffers on the device.

q = number of tokens in one pass, t = number of slots covered by its tree mask, V = vocabulary size.
"""

import gc
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from sequoia_core.models.tree_cache import CacheSession

ReplayGraph = Callable[[], None]


def capture_graph(work: Callable[[], Tensor], device: torch.device) -> tuple[ReplayGraph, Tensor]:
    """Capture work on a CUDA device without running it; return a function that replays it and its result."""
    graph = torch.cuda.CUDAGraph()
    was_enabled = gc.isenabled()
    # Freeing another graph during the capture would abort it.
    gc.disable()
    try:
        # Use "thread_local" because other threads may be copying layers.
        with torch.cuda.graph(graph, stream=_capture_stream(device), capture_error_mode="thread_local"):
            result = work()
    except RuntimeError:
        # After a failed capture, the device cannot draw random numbers until another capture has succeeded.
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=_capture_stream(device)):
            torch.zeros(1, device=device)
        raise
    finally:
        if was_enabled:
            gc.enable()
    return graph.replay, result


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for captures on a device, one because each keeps a workspace for matrix products.

    PyTorch's default is on the device of the first capture. Work on another device would run uncaptured, and replays
    would do nothing.
    """
    return torch.cuda.Stream(device)


# Functions that capture work, by device type.
GRAPH_CAPTURE = {"cuda": capture_graph}
MIN_VISIBLE = 512  # slots


def visible_slots(stop: int, capacity: int) -> int:
    """Return the number of slots that a pass attends to if the first `stop` are in use.

    Each number needs graphs of its own, so these are powers of two, up to the cache's capacity.
    """
    return min(capacity, max(MIN_VISIBLE, 1 << (stop - 1).bit_length()))


class Phase:
    """Work that every step does in the same way on the same buffers; its result is valid until the next call.

    On a GPU, the work is captured as a graph after its first run and replayed in later calls. If the capture fails, a
    warning is issued and the work continues to run without a graph.

    Args:
        work: function that does the work and returns its result; its arguments are numbers on which shapes depend.
        device: device on which it runs.
        inputs: function that returns the tensors that `work` reads but does not own. The work is captured only if these
            and the numbers are the same as in the previous call; each combination of them has its own graph.
    """

    def __init__(
        self,
        work: Callable[..., Tensor],
        device: torch.device,
        inputs: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.work = work
        self.inputs = inputs
        self.device = device
        self._capture = GRAPH_CAPTURE.get(device.type)
        self._last: tuple[int | Tensor, ...] | None = None
        self._graphs: list[tuple[tuple[int | Tensor, ...], ReplayGraph, Tensor]] = []

    @torch.inference_mode()
    def __call__(self, *shape: int) -> Tensor:
        if self._capture is None:
            return self.work(*shape)
        given: tuple[int | Tensor, ...] = (*shape, *self.inputs())
        last = self._last
        self._last = given
        graph = next((graph for graph in self._graphs if _are_same(graph[0], given)), None)
        if graph is None and last is not None and _are_same(last, given):
            graph = self._try_capture(self._capture, shape, given)
        if graph is None:
            return self.work(*shape)
        _, replay, result = graph
        replay()
        return result

    def _try_capture(self, capture: Callable, shape: tuple[int, ...], given: tuple) -> tuple | None:
        try:
            self._graphs.append((given, *capture(partial(self.work, *shape), self.device)))
            return self._graphs[-1]
        except RuntimeError as error:
            warnings.warn(f"a decoding phase runs without a CUDA graph, which is slower: {error}", stacklevel=3)
            self._capture = None
            return None


def _are_same(one: Sequence[int | Tensor], other: Sequence[int | Tensor]) -> bool:
    return len(one) == len(other) and all(
        a is b or (isinstance(a, int) and a == b) for a, b in zip(one, other, strict=True)
    )


class StaticPass:
    """One pass of a session, with a fixed shape.

    Args:
        session: a session that `is_static` accepts.
        tree_mask: float32 [q, t], over t slots starting at `first`; the last q slots are those of this pass. All slots
            before `first` are visible, except outside a layer's sliding window.
        depths: int64 [t], positions relative to `first`.
        first: int64 [1] on the device, a slot; the caller changes it between steps.

    Attributes:
        ids, depths, tree_mask: inputs of the next pass, on the device.
        states: the hidden states that the session was asked to record in the last pass; None if there are none.
    """

    def __init__(self, session: CacheSession, tree_mask: Tensor, depths: Tensor, *, first: Tensor) -> None:
        device = session.device
        width, covered = tree_mask.shape
        self.session = session
        self.first = first
        self.ids = torch.zeros(width, dtype=torch.int64, device=device)
        self.tree_mask = tree_mask.to(device, session.dtype, copy=True)
        self.depths = depths.to(device, copy=True)
        self.states: Tensor | None = None
        self._covered = torch.arange(covered, device=device)
        self._slots = torch.arange(session.cache.capacity, device=device)

    def logits(self, visible: int | None = None) -> Tensor:
        """Run the model over `ids` and return logits, [q, V].

        Args:
            visible: number of slots to attend to, at least those in use; None for all of the cache's.
        """
        covered = self.first + self._covered
        count = len(self.ids)
        slots = self._slots[:visible]
        mask = torch.where(slots < self.first, 0.0, -torch.inf).to(self.tree_mask.dtype)
        mask = mask.repeat(count, 1).index_copy_(1, covered, self.tree_mask)
        # The slots of committed tokens are their positions.
        positions = slots.index_copy(0, covered, self.first + self.depths)
        own = self.first + self.depths[-count:]
        masks = {
            window: mask if window is None else mask.masked_fill(positions <= own[:, None] - window, -torch.inf)
            for window in self.session.windows
        }
        masks = {window: each[None, None] for window, each in masks.items()}
        logits = self.session.logits_at(covered[-count:], self.ids, own, masks)
        if self.session.states is not None:
            # A graph writes into the same buffer in every step.
            self.states = torch.empty_like(self.session.states) if self.states is None else self.states
            self.states.copy_(self.session.states)
        return logits


def is_static(session: object) -> bool:
    """Return whether a session supports passes with a fixed shape and benefits from them, as it does on a GPU."""
    return isinstance(session, CacheSession) and session.any_slot and session.device.type != "cpu"
