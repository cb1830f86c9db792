"""Compiled linear layers: correct to rounding, batch-invariant, and PyTorch's where they do not apply."""

import copy

import pytest
import torch
from torch import nn

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_extras.cpu_kernels import instruction_sets, linear
from sequoia_extras.cpu_kernels.linear import CompiledLinear, compile_layers
from tests.core.test_families import build
from tests.extras.cpu_kernels.test_compile_c import needs_compiler
from tests.extras.cpu_kernels.test_instruction_sets import RUNNABLE

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not RUNNABLE, reason="the processor has neither AVX-512 nor AVX2"),
]


@pytest.fixture(params=RUNNABLE)
def instructions(request, monkeypatch):
    monkeypatch.setenv(instruction_sets.INSTRUCTIONS_VARIABLE, request.param)
    found, reason = linear.load_llama_kernels(instruction_sets.choose_instruction_set()[0])
    if found is None:
        pytest.skip(reason)


def layer(rows: int, columns: int, *, bias: bool, single: bool = False) -> nn.Linear:
    torch.manual_seed(rows)
    made = nn.Sequential(nn.Linear(columns, rows, bias=bias).to(torch.bfloat16))
    compile_layers(made)
    assert isinstance(made[0], CompiledLinear) and not made[0].single
    made[0].single = single
    return made[0]


@pytest.mark.parametrize(("rows", "columns", "bias"), [(1024, 64, False), (515, 160, True), (70, 1024, True)])
@torch.inference_mode()
def test_products_are_exact_to_rounding_and_batch_invariant(instructions, rows, columns, bias):
    product = layer(rows, columns, bias=bias, single=True)
    x = torch.randn(70, columns).to(torch.bfloat16)
    expected = nn.functional.linear(x.double(), product.weight.double(), None if not bias else product.bias.double())
    alone = torch.cat([product(row[None]) for row in x])
    torch.testing.assert_close(alone.double(), expected, atol=3e-6, rtol=3e-6)
    product.single = False
    for count in (1, 2, 3, 4, 5, 7, 16, 17, 33, 70):
        assert torch.equal(product(x[:count]), alone[:count].to(torch.bfloat16))
    assert torch.equal(product(x.view(2, 5, 7, -1)), alone.to(torch.bfloat16).view(2, 5, 7, -1))
    assert torch.equal(product(x.T.contiguous().T), alone.to(torch.bfloat16))  # a view with noncontiguous rows
    assert product(x[:0]).shape == (0, rows)


def test_gradients_and_other_dtypes_fall_back_to_pytorch():
    product = layer(1024, 64, bias=True)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    product(x).sum().backward()
    assert product.weight.grad is not None
    with torch.inference_mode():
        assert product.float()(x.float()).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert product(x.float()).dtype == torch.bfloat16


def test_only_large_plain_bfloat16_layers_are_compiled():
    class Other(nn.Linear):
        pass

    layers = nn.ModuleList(
        [nn.Linear(64, 1024), nn.Linear(64, 1023), nn.Linear(65, 1024), Other(64, 1024), nn.Linear(65536, 8)]
    ).to(torch.bfloat16)
    hooked = nn.Linear(64, 1024).to(torch.bfloat16)
    hooked.forward = hooked.forward  # as accelerate does when it dispatches weights
    wide = nn.Linear(64, 1024)
    compile_layers(nn.ModuleList([*layers, hooked, wide]))
    assert [type(one).__name__ for one in layers] == ["CompiledLinear", "Linear", "Linear", "Other", "Linear"]
    assert type(hooked) is nn.Linear and type(wide) is nn.Linear


def test_other_families_share_weights_and_get_float32_logits():
    model = build("Gemma2", hidden_size=64, intermediate_size=1024, vocab_size=2048).to(torch.bfloat16)
    embedding = model.get_input_embeddings().weight
    own = HuggingFaceModel(model, "Gemma 2")
    assert "linear layers compiled" in own.backend
    assert model.get_output_embeddings().weight.data_ptr() == embedding.data_ptr()
    session = own.open(16)
    assert session.logits_dtype == torch.float32 and session.dtype == torch.bfloat16
    logits = session.forward(torch.arange(3), torch.arange(3), torch.full((3, 3), -torch.inf).triu(1), keep=3)
    exact = HuggingFaceModel(copy.deepcopy(model).float(), "in float32")
    with torch.inference_mode():
        wanted = exact.plain_logits(torch.arange(3))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wanted, atol=0.05 * float(wanted.std()), rtol=0.05)


@pytest.mark.parametrize(
    ("weight", "inputs"),
    [((1024, 64), (3, 32)), ((1024, 64), (400, 640)), ((8, 64), (3, 64)), ((1024, 48), (3, 48)), ((1024, 48), (3, 64))],
    ids=str,
)
@pytest.mark.sample(5)
@torch.inference_mode()
def test_unsupported_shapes_fall_back_to_pytorch(weight, inputs):
    product = layer(1024, 64, bias=False)
    x = torch.randn(inputs).to(torch.bfloat16)
    product.weight = nn.Parameter(torch.randn(weight).to(torch.bfloat16))
    if weight[1] != inputs[-1]:
        with pytest.raises(RuntimeError, match="shape"):
            product(x)
    else:
        assert torch.equal(product(x), nn.functional.linear(x, product.weight))
