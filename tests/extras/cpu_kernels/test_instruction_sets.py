"""Choice of the instruction set, and messages if the requested one is unavailable."""

import pytest

from sequoia_core.models.loading import load_pair
from sequoia_extras.cpu_kernels import compile_c, llama_x86
from sequoia_extras.cpu_kernels.instruction_sets import (
    INSTRUCTION_SETS,
    INSTRUCTIONS_VARIABLE,
    choose_instruction_set,
    compiles_products,
)
from tests.extras.cpu_kernels.test_compile_c import needs_compiler

LLAMA = {"model_type": "llama", "hidden_size": 64}
RUNNABLE = [found.name for found in INSTRUCTION_SETS.values() if found.is_available]

VECTORS = "avx2 fma avx512f avx512bw avx512vl avx512dq"


def on(monkeypatch, flags: str) -> None:
    monkeypatch.setattr("sequoia_extras.cpu_kernels.instruction_sets.processor_flags", lambda: f"flags : fpu {flags}")


@pytest.mark.parametrize(
    "flags, name",
    [
        ("avx2 fma", "avx2"),
        (f"{VECTORS}", "avx512"),
        (f"{VECTORS} avx512_bf16", "avx512-bf16"),
        (f"{VECTORS} avx512_bf16 amx_tile amx_bf16", "amx"),
        (f"{VECTORS} amx_tile amx_bf16", "avx512"),
    ],
)
def test_fastest_available_set_is_chosen_but_never_an_emulated_one(flags, name, monkeypatch):
    monkeypatch.delenv(INSTRUCTIONS_VARIABLE, raising=False)
    on(monkeypatch, flags)
    assert choose_instruction_set() == (INSTRUCTION_SETS[name], "")


def test_requested_set_is_used_even_if_a_faster_one_is_available(monkeypatch):
    on(monkeypatch, VECTORS)
    for name in ("avx2", "avx512", "amx-emulated", "avx512-bf16-emulated"):
        monkeypatch.setenv(INSTRUCTIONS_VARIABLE, name)
        assert choose_instruction_set()[0].name == name


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ("neon", "", "the processor has neither AVX-512 nor AVX2"),
        (
            "avx2 fma avx512f",
            "amx-emulated",
            f"{INSTRUCTIONS_VARIABLE}=amx-emulated: the processor lacks avx512bw, avx512dq, avx512vl",
        ),
        ("avx2 fma", "neon", f"{INSTRUCTIONS_VARIABLE}: found 'neon', expected one of {', '.join(INSTRUCTION_SETS)}"),
    ],
)
def test_unavailable_sets_give_a_reason(flags, name, reason, monkeypatch):
    on(monkeypatch, flags)
    monkeypatch.setenv(INSTRUCTIONS_VARIABLE, name)
    assert llama_x86.llama_kernels() == choose_instruction_set() == (None, reason)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["amx", "avx512-bf16"])
def test_emulated_code_also_builds_for_real_instructions(name, tmp_path):
    """Otherwise the tests could pass with code that does not compile for the real instructions."""
    wanted = INSTRUCTION_SETS[name]
    empty = tmp_path / "empty.c"
    empty.write_text("")
    try:
        compile_c.build([empty], wanted.flags, tmp_path / "built")
    except OSError as error:
        pytest.skip(f"the compiler does not know the instructions: {error}")
    sources = [compile_c.FOLDER / name for name in llama_x86.C_SOURCES]
    flags = [*llama_x86.FLAGS, *wanted.flags, f'-DPRODUCTS="{wanted.products}"']
    compile_c.build(sources, flags, tmp_path / "built")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SEQUOIA_INSTRUCTIONS", "junk", "found 'junk', expected one of amx, "),
        ("SEQUOIA_INSTRUCTIONS", "amx", "SEQUOIA_INSTRUCTIONS=amx: the processor lacks amx_bf16"),
        ("SEQUOIA_NATIVE", "no", "SEQUOIA_NATIVE: found 'no', expected 0 or 1"),
    ],
)
def test_invalid_environment_variables_are_reported(name, value, said, monkeypatch, refusal):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "sequoia_extras.cpu_kernels.instruction_sets.processor_flags", lambda: "flags : avx2 fma amx_tile"
    )
    assert said in refusal("generate", "--prompt", "x")


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": 65}, {"hidden_size": "64"}, {"model_type": "gpt2"}, {"num_local_experts": 8}],
)
def test_models_with_other_layers_are_not_compiled(monkeypatch, change):
    monkeypatch.setattr(compile_c, "can_compile", lambda: True)
    monkeypatch.setattr("sequoia_extras.cpu_kernels.instruction_sets.choose_instruction_set", lambda: ("some set", ""))
    assert not compiles_products(LLAMA | change)
    assert compiles_products(LLAMA | {"model_type": "gemma3_text"})


def test_demo_target_is_compiled_if_predicted():
    model = load_pair(device="cpu").target.model
    assert llama_x86.can_run_compiled(model) or not compiles_products(model.config.to_dict())
