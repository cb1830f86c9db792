"""Which instruction set is chosen, and what is said when the one asked for is not to be had."""

import pytest

from sequoia_core.native import compile_c, llama_x86
from sequoia_core.native.instruction_sets import BY_NAME, VARIABLE, chosen
from tests.core.native.test_compile_c import needs_compiler

RUNNABLE = [found.name for found in BY_NAME.values() if found.is_here]

VECTORS = "avx2 fma avx512f avx512bw avx512vl avx512dq"


def on(monkeypatch, flags: str) -> None:
    monkeypatch.setattr("sequoia_core.native.instruction_sets.processor_flags", lambda: f"flags : fpu {flags}")


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
def test_the_fastest_that_the_processor_has_is_chosen_and_never_an_emulation(flags, name, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    on(monkeypatch, flags)
    assert chosen() == (BY_NAME[name], "")


def test_one_asked_for_is_taken_even_where_a_faster_one_is_here(monkeypatch):
    on(monkeypatch, VECTORS)
    for name in ("avx2", "avx512", "amx-emulated", "avx512-bf16-emulated"):
        monkeypatch.setenv(VARIABLE, name)
        assert chosen()[0].name == name


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ("neon", "", "the processor has neither AVX-512 nor AVX2"),
        (
            "avx2 fma avx512f",
            "amx-emulated",
            f"{VARIABLE}=amx-emulated: the processor lacks avx512bw, avx512dq, avx512vl",
        ),
        ("avx2 fma", "neon", f"{VARIABLE}: found 'neon', expected one of {', '.join(BY_NAME)}"),
    ],
)
def test_what_is_not_to_be_had_is_a_reason(flags, name, reason, monkeypatch):
    on(monkeypatch, flags)
    monkeypatch.setenv(VARIABLE, name)
    assert llama_x86.compiled() == chosen() == (None, reason)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["amx", "avx512-bf16"])
def test_code_that_runs_emulated_also_builds_for_the_processor(name, tmp_path):
    """Else the tests could pass here with code that no processor with these instructions ever runs."""
    wanted, empty = BY_NAME[name], tmp_path / "empty.c"
    empty.write_text("")
    try:
        compile_c.build([empty], wanted.flags, tmp_path / "built")
    except OSError as error:
        pytest.skip(f"the compiler does not know the instructions: {error}")
    sources = [compile_c.FOLDER / name for name in llama_x86.SOURCES]
    flags = [*llama_x86.FLAGS, *wanted.flags, f'-DPRODUCTS="{wanted.products}"']
    compile_c.build(sources, flags, tmp_path / "built")
