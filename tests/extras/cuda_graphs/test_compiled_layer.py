"""Layers compiled by Inductor, on the CPU: the same text and logits, and one compilation for all layers."""

import pytest
import torch
from torch._dynamo.utils import counters

from sequoia_core.decoding.loop import decode
from sequoia_core.files.notices import Notice
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import run_layer
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_core.trees.plain import k_ary_tree
from sequoia_extras.cuda_graphs import compiled_layer
from sequoia_extras.cuda_graphs.compiled_layer import CompiledLayer
from sequoia_extras.cuda_graphs.phases import StaticPass
from tests.conftest import pair_of, tokens_of
from tests.core.models.test_llama_torch import PROMPT, llama
from tests.extras.cpu_kernels.test_compile_c import needs_compiler
from tests.extras.cuda_graphs.test_gpu_path import run_on_cpu

TREE = k_ary_tree(2, 2)  # padded to 8 nodes; both levels of its draft read two tokens


def wrapped(family: str) -> HuggingFaceModel:
    model = llama(family, num_hidden_layers=3, head_dim=8)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(50)  # so that the text does not repeat one token
    return HuggingFaceModel(model, family)


@torch.inference_mode()
def logits(model: HuggingFaceModel) -> torch.Tensor:
    """Return the logits of a static pass over 8 tokens and of a plain pass over another one."""
    session = model.open(512)
    prefill(session, PROMPT)
    static = StaticPass(session, causal_mask(8), torch.arange(8), first=torch.tensor([len(PROMPT)]))
    static.ids.copy_(torch.arange(8))
    found = static.logits()
    session.commit(len(PROMPT), range(8))
    position = torch.tensor([session.length])
    return torch.cat([found, session.forward(torch.tensor([9]), position, torch.zeros(1, 1), keep=1)])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_compiled_layers_decode_the_same_text(family, monkeypatch):
    plain = wrapped(family)
    run_on_cpu(monkeypatch)
    monkeypatch.setenv(compiled_layer.VARIABLE, "1")
    monkeypatch.setattr(compiled_layer, "DEVICE_TYPE", "cpu")
    compiled = wrapped(family)
    torch._dynamo.reset()
    counters.clear()
    plain_text, text = (
        tokens_of(decode(PROMPT, pair_of(model, model), tree=TREE, max_new_tokens=24)) for model in (plain, compiled)
    )
    assert text == plain_text and len(set(text)) > 3
    torch.testing.assert_close(logits(compiled), logits(plain), atol=2e-6, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 2, "one for each number of tokens"
    assert not compiled._backend.run_static_layer.failed


@pytest.mark.parametrize(
    ("value", "device", "compiles"), [("1", "cuda:0", True), ("1", "cpu", False), ("0", "cuda:0", False)]
)
def test_layers_are_compiled_only_on_request_and_on_a_gpu(value, device, compiles, monkeypatch):
    monkeypatch.setenv(compiled_layer.VARIABLE, value)
    assert (compiled_layer.compile_layer(run_layer, torch.device(device)) is not None) == compiles


def test_a_failed_compilation_is_reported_once():
    def negate_ones(x):  # a branch that depends on data cannot be compiled
        return -x if len(x) > 1 or x.sum() == 1 else x

    run = CompiledLayer(negate_ones)
    with pytest.warns(Notice, match="run uncompiled, which is slower: Data-dependent"):
        assert run(torch.ones(1)) == -1
    compiled = counters["stats"]["unique_graphs"]
    assert run(torch.ones(2)).tolist() == [-1, -1]
    assert counters["stats"]["unique_graphs"] == compiled
