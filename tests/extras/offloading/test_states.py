"""Hidden states for draft heads: each backend records those of the model's own forward."""

import pytest
import torch

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_extras.cpu_kernels.llama_x86 import CompiledLlama
from tests.core.test_families import build, save
from tests.extras.offloading.test_offloading import compiled_family, needs_compiler

IDS = torch.tensor([3, 14, 15, 9, 26, 5, 35])
NUMBERS = (2, 0, 3)


def recorded_states(model, numbers=NUMBERS):
    """Return the states of a text read in two passes, the second with a tree branch that must not change them."""
    session = model.open(16, state_indices=numbers)
    session.forward(IDS[:4], torch.arange(4), causal_mask(4), keep=1)
    first = session.states.clone()
    mask = torch.full((4, 4), -torch.inf).triu(1)
    mask[3, 2] = -torch.inf  # the last one is a sibling of the one before
    session.forward(torch.cat([IDS[4:], IDS[:1]]), torch.tensor([4, 5, 6, 6]), mask, keep=2)
    return torch.cat([first, session.states[:3]]).float()


def forward_states(weights, numbers=NUMBERS):
    states = weights(input_ids=IDS[None], output_hidden_states=True, use_cache=False).hidden_states
    return torch.stack([states[number][0] for number in numbers], 1).detach().float()


@pytest.mark.parametrize("family", ["Llama", "Gemma3", "OPT", "GPTNeoX"])
def test_transformers_backend_records_hidden_states(family):
    weights = build(family, num_hidden_layers=4).eval()
    found = recorded_states(HuggingFaceModel(weights, "model", backend=TransformersBackend(weights)))
    torch.testing.assert_close(found, forward_states(weights), rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_compiled_passes_record_hidden_states(name, tmp_path, copies):
    weights = compiled_family(name, num_hidden_layers=4)
    model = HuggingFaceModel(weights, "model")
    assert isinstance(model._backend, CompiledLlama)
    found = recorded_states(model)
    wanted = forward_states(weights)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))
    assert (found[:, 0] - wanted[:, 0]).norm() < 0.02 * wanted[:, 0].norm()
    assert torch.equal(found[:, 1], weights.get_input_embeddings().weight[IDS].float())
    last = recorded_states(model, (4,))[:, 0]
    normed = weights.model.norm(last.bfloat16()).float()
    wanted = forward_states(weights, (4,))[:, 0]
    assert (normed - wanted).norm() < 0.02 * wanted.norm()
    folder = save(weights, tmp_path / "model")
    pairs = (load_pair(folder, "none", device="cpu", dtype="bfloat16", offload=tier) for tier in (None, "disk"))
    assert torch.equal(*(recorded_states(pair.target) for pair in pairs))
