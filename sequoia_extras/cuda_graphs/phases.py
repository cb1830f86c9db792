"""Work with fixed shapes, as CUDA graphs require: values that change between steps are in buffers on the device.

q = number of tokens in one pass, t = number of slots covered by its tree mask, V = vocabulary size.
"""

import gc
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sequoia_core.models.tree_cache import CacheSession

ReplayGraph = Callable[[], None]


def capture_graph(work: Callable[[], Tensor]) -> tuple[ReplayGraph, Tensor]:
    """Capture work on the current CUDA device without running it; return a function that replays it and its result."""
    graph = torch.cuda.CUDAGraph()
    was_enabled = gc.isenabled()
    # Freeing another graph during the capture would abort it.
    gc.disable()
    try:
        # Use "thread_local" because other threads may be copying layers.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = work()
    except RuntimeError:
        # After a failed capture, the device cannot draw random numbers until another capture has succeeded.
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        raise
    finally:
        if was_enabled:
            gc.enable()
    return graph.replay, result


# Functions that capture work, by device type.
GRAPH_CAPTURE = {"cuda": capture_graph}


class Phase:
    """Work that every step does in the same way on the same buffers; its result is valid until the next call.

    On a GPU, the work is captured as a graph after its first run and replayed in later calls. If the capture fails, a
    warning is issued and the work continues to run without a graph.

    Args:
        work: function that does the work and returns its result.
        device: device on which it runs.
        inputs: function that returns the tensors that `work` reads but does not own. The work is captured only if they
            are the same as in the previous call, and the graph is replayed only if they are the same as at capture.
    """

    def __init__(
        self,
        work: Callable[[], Tensor],
        device: torch.device,
        inputs: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self.work = work
        self.inputs = inputs
        self._capture = GRAPH_CAPTURE.get(device.type)
        self._last_inputs: Sequence[Tensor] | None = None
        self._graph: tuple[Sequence[Tensor], ReplayGraph, Tensor] | None = None

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        if self._capture is None:
            return self.work()
        inputs = self.inputs()
        last = self._last_inputs
        self._last_inputs = inputs
        if self._graph is None and last is not None and _are_same(inputs, last):
            self._graph = self._try_capture(self._capture, inputs)
        if self._graph is None or not _are_same(inputs, self._graph[0]):
            return self.work()
        _, replay, result = self._graph
        replay()
        return result

    def _try_capture(self, capture: Callable, inputs: Sequence[Tensor]) -> tuple | None:
        try:
            return (inputs, *capture(self.work))
        except RuntimeError as error:
            warnings.warn(f"a decoding phase runs without a CUDA graph, which is slower: {error}", stacklevel=3)
            self._capture = None
            return None


def _are_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


class StaticPass:
    """One pass of a session, with a fixed shape.

    Args:
        session: a session that `is_static` accepts.
        tree_mask: float32 [q, t], over t slots starting at `first`; the last q slots are those of this pass. All slots
            before `first` are visible.
        depths: int64 [q], positions relative to `first`.
        first: int64 [1] on the device, a slot; the caller changes it between steps.

    Attributes:
        ids, depths, tree_mask: inputs of the next pass, on the device.
    """

    def __init__(self, session: CacheSession, tree_mask: Tensor, depths: Tensor, *, first: Tensor) -> None:
        device = session.device
        width, covered = tree_mask.shape
        self.session = session
        self.first = first
        self.ids = torch.zeros(width, dtype=torch.int64, device=device)
        self.tree_mask = tree_mask.to(device, session.dtype, copy=True)
        self.depths = depths.to(device, copy=True)
        self._covered = torch.arange(covered, device=device)
        self._slots = torch.arange(session.cache.capacity, device=device)
        self._hidden = torch.full((width, len(self._slots)), -torch.inf, dtype=session.dtype, device=device)

    def logits(self) -> Tensor:
        """Run the model over `ids` and return logits, [q, V]."""
        covered = self.first + self._covered
        mask = self._hidden.masked_fill(self._slots < self.first, 0.0).index_copy_(1, covered, self.tree_mask)
        return self.session.logits_at(covered[-len(self.ids) :], self.ids, self.first + self.depths, mask[None, None])


def is_static(session: object) -> bool:
    """Return whether a session supports passes with a fixed shape and benefits from them, as it does on a GPU."""
    return isinstance(session, CacheSession) and session.any_slot and session.device.type != "cpu"
