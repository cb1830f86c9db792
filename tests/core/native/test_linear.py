"""Compiled linear layers: right to rounding, the same bits for a row alone and among others, PyTorch's elsewhere."""

import copy

import pytest
import torch
from torch import nn

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.native import instruction_sets, linear
from sequoia_core.native.linear import CompiledLinear, compile_layers
from tests.core.native.test_compile_c import needs_compiler
from tests.core.native.test_instruction_sets import RUNNABLE
from tests.core.test_families import build

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not RUNNABLE, reason="the processor has neither AVX-512 nor AVX2"),
]


@pytest.fixture(params=RUNNABLE)
def instructions(request, monkeypatch):
    monkeypatch.setenv(instruction_sets.VARIABLE, request.param)
    found, reason = linear.load(instruction_sets.chosen()[0])
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
def test_products_are_right_and_a_row_has_the_same_bits_among_others(instructions, rows, columns, bias):
    product = layer(rows, columns, bias=bias, single=True)
    x = torch.randn(70, columns).to(torch.bfloat16)
    expected = nn.functional.linear(x.double(), product.weight.double(), None if not bias else product.bias.double())
    alone = torch.cat([product(row[None]) for row in x])
    torch.testing.assert_close(alone.double(), expected, atol=3e-6, rtol=3e-6)
    product.single = False
    for count in (1, 2, 3, 4, 5, 7, 16, 17, 33, 70):
        assert torch.equal(product(x[:count]), alone[:count].to(torch.bfloat16))
    assert torch.equal(product(x.view(2, 5, 7, -1)), alone.to(torch.bfloat16).view(2, 5, 7, -1))
    assert torch.equal(product(x.T.contiguous().T), alone.to(torch.bfloat16))  # a view whose rows do not lie together
    assert product(x[:0]).shape == (0, rows)


def test_pytorch_multiplies_where_gradients_or_another_dtype_are_asked_for():
    product = layer(1024, 64, bias=True)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    product(x).sum().backward()
    assert product.weight.grad is not None
    with torch.inference_mode():
        assert product.float()(x.float()).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert product(x.float()).dtype == torch.bfloat16


def test_only_large_layers_of_pytorch_s_own_class_in_bfloat16_are_compiled():
    class Other(nn.Linear):
        pass

    layers = nn.ModuleList(
        [nn.Linear(64, 1024), nn.Linear(64, 1023), nn.Linear(65, 1024), Other(64, 1024), nn.Linear(65536, 8)]
    ).to(torch.bfloat16)
    hooked = nn.Linear(64, 1024).to(torch.bfloat16)
    hooked.forward = hooked.forward  # as accelerate does where it places weights itself
    wide = nn.Linear(64, 1024)
    compile_layers(nn.ModuleList([*layers, hooked, wide]))
    assert [type(one).__name__ for one in layers] == ["CompiledLinear", "Linear", "Linear", "Other", "Linear"]
    assert type(hooked) is nn.Linear and type(wide) is nn.Linear


def test_any_family_keeps_its_weights_where_they_are_and_its_logits_in_float32():
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
def test_what_compiled_products_do_not_fit_is_pytorchs_which_raises_or_computes(weight, inputs):
    product, x = layer(1024, 64, bias=False), torch.randn(inputs).to(torch.bfloat16)
    product.weight = nn.Parameter(torch.randn(weight).to(torch.bfloat16))
    if weight[1] != inputs[-1]:
        with pytest.raises(RuntimeError, match="shape"):
            product(x)
    else:
        assert torch.equal(product(x), nn.functional.linear(x, product.weight))
