"""Passes of a fixed shape, as a CUDA graph needs them: what changes from step to step is in buffers on the device.

Shapes: q = tokens in one pass, t = slots that its tree mask covers, V = vocabulary.
"""

import gc
import warnings
from collections.abc import Callable, Sequence

import torch

from ...models.tree_cache import CacheSession


def padded(size: int) -> int:
    """Return the size of the pass that serves so many tokens: a power of two, or a multiple of 32."""
    return 1 << (size - 1).bit_length() if size <= 32 else -(-size // 32) * 32


Replay = Callable[[], None]


def captured(work: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """Capture work on the current CUDA device without doing it; return its replay, and where the result appears."""
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # a graph that is freed meanwhile would end the capture
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may copy layers meanwhile
            result = work()
    except RuntimeError:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):  # else the device would draw no more random numbers
            torch.zeros(1, device="cuda")
        raise
    finally:
        if collecting:
            gc.enable()
    return graph.replay, result


GRAPHS = {"cuda": captured}  # type of device -> how work is captured there


class Phase:
    """Work that every step does in the same way on the same buffers; its result is valid until the next call.

    On a GPU it is captured as a graph once it has run, and replayed from then on. Where that fails it runs as before,
    with a warning.

    Args:
        given: returns tensors made elsewhere that the work reads. While they differ from the call before it is not
            captured, and while they are not those of the graph it runs without it.
    """

    def __init__(
        self,
        work: Callable[[], torch.Tensor],
        device: torch.device,
        given: Callable[[], Sequence[torch.Tensor]] = tuple,
    ) -> None:
        self.work, self.given, self._capture = work, given, GRAPHS.get(device.type)
        self._last: Sequence[torch.Tensor] | None = None  # given to the call before
        self._graph: tuple[Sequence[torch.Tensor], Replay, torch.Tensor] | None = None

    @torch.inference_mode()
    def __call__(self) -> torch.Tensor:
        if self._capture is None:
            return self.work()
        given, last = self.given(), self._last
        self._last = given
        if self._graph is None and last is not None and _same(given, last):
            self._graph = self._try(self._capture, given)
        if self._graph is None or not _same(given, self._graph[0]):
            return self.work()
        _, replay, result = self._graph
        replay()
        return result

    def _try(self, capture: Callable, given: Sequence[torch.Tensor]) -> tuple | None:
        try:
            return (given, *capture(self.work))
        except RuntimeError as error:
            warnings.warn(f"a step's phase runs without a CUDA graph, slower than it could: {error}", stacklevel=3)
            self._capture = None
            return None


def _same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(mine is theirs for mine, theirs in zip(one, other, strict=True))


class StaticPass:
    """One pass of a session, of fixed shape.

    Args:
        session: one that `is_static` accepts.
        tree_mask: float32 [q, t], over the slots from `first` on, of which the last q are this pass's own; every slot
            before them is visible.
        depths: int64 [q], positions counted from that of `first`.
        first: int64 [1] on the device; the caller changes it from step to step.
    Attributes:
        ids, depths, tree_mask: what the next pass reads, on the device.
    """

    def __init__(
        self,
        session: CacheSession,
        tree_mask: torch.Tensor,
        depths: torch.Tensor,
        *,
        first: torch.Tensor,
    ) -> None:
        device, (width, covered) = session.device, tree_mask.shape
        self.session, self.first = session, first
        self.ids = torch.zeros(width, dtype=torch.int64, device=device)
        self.tree_mask = tree_mask.to(device, session.dtype, copy=True)
        self.depths = depths.to(device, copy=True)
        self._covered = torch.arange(covered, device=device)
        self._slots = torch.arange(session.cache.capacity, device=device)
        self._hidden = torch.full((width, len(self._slots)), -torch.inf, dtype=session.dtype, device=device)

    def logits(self) -> torch.Tensor:
        """Run the model over `ids`; return float [q, V]."""
        covered = self.first + self._covered
        mask = self._hidden.masked_fill(self._slots < self.first, 0.0).index_copy_(1, covered, self.tree_mask)
        return self.session.logits_at(covered[-len(self.ids) :], self.ids, self.first + self.depths, mask[None, None])


def is_static(session: object) -> bool:
    """Whether a session can run passes of a fixed shape and gains by it: on a GPU."""
    return isinstance(session, CacheSession) and session.any_slot and session.device.type != "cpu"
