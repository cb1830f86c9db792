"""CUDA graph capture of phases, simulated on a pretend device, and failures of real captures."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import as_policy
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.cuda_graphs import phases
from sequoia_extras.cuda_graphs.phases import Phase
from tests.conftest import pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_loop import PROMPT, TREES
from tests.extras.cuda_graphs.test_gpu_path import SPEC_EXEC
from tests.head_folders import random_head
from tests.pretend_device import COPIES, INDEXED, PretendTensor, pretend_device


def reads_back(func, args, found):
    """Return whether an operation copied from the device to the host, perhaps for the shape of its result."""
    given = tree_leaves(args)
    if not any(isinstance(part, PretendTensor) for part in given):
        return False
    # Only with masks does the shape of indexing depend on data.
    shaped = func._schema.name not in INDEXED or any(getattr(part, "dtype", None) == torch.bool for part in given[1:])
    return (shaped and torch.Tag.dynamic_output_shape in func.tags) or any(
        type(part) in (int, float, bool) or (isinstance(part, torch.Tensor) and part.device.type == "cpu")
        for part in tree_leaves(found)
    )


def copies_from_host(func, args, found):
    """Return whether an operation copied a tensor from the host to the device, other than a scalar argument."""
    copies = func._schema.name in COPIES + INDEXED
    return any(isinstance(part, PretendTensor) for part in tree_leaves(found)) and any(
        isinstance(part, torch.Tensor) and part.device.type == "cpu" and (part.ndim or copies)
        for part in tree_leaves(args)
    )


def address(tensor):
    return tensor.data_on_cpu.untyped_storage().data_ptr()


def simulated(work, device):
    """Simulate a CUDA graph on the pretend device: replay all operations with the same tensors and numbers.

    A number or buffer that the host chooses anew in each step would change the text; reading back raises an error.
    """
    done = []
    replays = itertools.count()

    class Writing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            assert not reads_back(func, args, found), f"{func} reads back, which no graph can capture"
            assert not copies_from_host(func, args, found), f"{func} copies from the host, which no graph can capture"
            done.append((func, args, kwargs or {}, found))
            return found

    def replay():
        for func, args, kwargs, found in done if next(replays) else ():  # here, unlike on a GPU, capturing did the work
            for old, new in zip(tree_leaves(found), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, PretendTensor) and address(old) != address(new):
                    old.copy_(new)

    with Writing():
        return replay, work()


def pair_on(device, draft_seed):
    models = [HuggingFaceModel(tiny_llama(seed).model.to(device), "there") for seed in (1, draft_seed)]
    return pair_of(models[0], models[1] if draft_seed else random_head(models[0]))


RAGGED = as_policy(TREES["ragged"])
CUT = SamplingConfig(0.8, 0.9, 20)


# Policy, sampling, verifier, and the draft's seed: 1 is the target's, whose text is then what the draft draws; 0 is a
# head's.
GRAPHED = {
    "static": (RAGGED, SamplingConfig(), "sequoia", 1),
    "SpecExec": (SPEC_EXEC, SamplingConfig(), "topk", 1),
    "sampled": (RAGGED, SamplingConfig(0.8), "sequoia", 1),
    "top-p": (RAGGED, CUT, "sequoia", 1),
    "specinfer": (RAGGED, CUT, "specinfer", 1),
    "specinfer, rejected": (RAGGED, CUT, "specinfer", 2),
    "traversal, rejected": (RAGGED, CUT, "traversal", 2),
    "head": (RAGGED, SamplingConfig(0.8), "sequoia", 0),
    "alone": (as_policy(TokenTree(np.array([-1]))), SamplingConfig(), "sequoia", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", GRAPHED)
def test_captured_and_replayed_phases_give_the_same_text(case, monkeypatch):
    tree, sampling, verifier, draft_seed = GRAPHED[case]
    if case == "head":
        monkeypatch.setattr(phases, "MIN_VISIBLE", 32)  # so that each text needs graphs for several numbers of slots
    texts = []
    captures = [0]

    def text(pair, prompt, count):
        count = count // 3 if case == "head" else count  # few of its tokens are accepted
        options = {"sampling": sampling, "verifier": verifier, "generator": torch.Generator().manual_seed(0)}
        return tokens_of(decode(prompt, pair, tree=tree, max_new_tokens=count, **options))

    for capture in (None, lambda *call: captures.append(captures.pop() + 1) or simulated(*call)):
        with pretend_device() as device:
            if capture is not None:
                monkeypatch.setitem(phases.GRAPH_CAPTURE, device.type, capture)
            own = [pair_on(device, draft_seed) for _ in "ab"]
            text(own[0], [9, 8, 7, 6, 5], 60)
            (before,) = captures
            texts.append(text(own[0], PROMPT, 40))
            assert captures == [before] or tree.fixed is None
            texts.append(text(own[1], PROMPT, 40))
    assert texts == 4 * texts[:1]
    assert captures[0] >= {"SpecExec": 2, "alone": 3, "head": 4}.get(case, 5)


@pytest.mark.parametrize(("sampling", "verifier"), [(SamplingConfig(), "topk"), *((CUT, name) for name in VERIFIERS)])
def test_a_step_reads_the_device_once(sampling, verifier):
    reads = []

    class Reading(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if reads_back(func, args, found):
                reads.append(func)
            return found

    with pretend_device() as device:
        pair = pair_on(device, 2)
        options = {"sampling": sampling, "verifier": verifier, "details": TOKENS_ONLY}
        counts = [0]
        with Reading():
            for _ in decode(PROMPT, pair, tree=RAGGED, max_new_tokens=12, **options):
                counts.append(len(reads))
    assert np.diff(counts[1:]).tolist() == [1] * (len(counts) - 2) != [], reads


def test_failed_capture_warns_and_runs_uncaptured(monkeypatch):
    def refused(work, device):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(phases.GRAPH_CAPTURE, "cpu", refused)
    phase = Phase(lambda: torch.ones(1), torch.device("cpu"))
    assert phase() == 1
    with pytest.warns(UserWarning, match="without a CUDA graph.*not permitted"):
        assert phase() == 1
    assert phase() == 1


def test_graph_is_not_replayed_on_other_tensors(monkeypatch):
    captures = []
    monkeypatch.setitem(
        phases.GRAPH_CAPTURE, "cpu", lambda work, device: (lambda: None, captures.append(device) or work())
    )
    given = torch.zeros(1)
    phase = Phase(lambda slots: given + 1, torch.device("cpu"), lambda: (given,))
    assert [float(phase(int("1000"))) for _ in range(3)] == [1, 1, 1] and captures == [torch.device("cpu")]
    given = torch.ones(1)
    assert float(phase(1000)) == 2.0


@pytest.mark.gpu
def test_failed_captures_and_freed_graphs_leave_the_device_usable():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    device = torch.device("cuda")
    refused = Phase(lambda: torch.ones(int(torch.ones(1, device=device)), device=device), device)
    assert refused() == 1
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        assert refused() == 1
    assert refused() == 1 and torch.randn(3, device=device).isfinite().all()

    def making_garbage():
        for _ in range(3000):
            [].append(circle := [{}])
            circle.append(circle)
        return torch.ones(1, device=device)

    for _ in range(3):
        kept = Phase(lambda: torch.ones(1, device=device), device)
        kept.itself = kept
        phase = Phase(making_garbage, device)
        for _ in range(3):
            assert kept() == 1
        del kept
        assert [float(phase()) for _ in range(3)] == [1.0] * 3 and phase._graphs
