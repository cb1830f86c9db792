"""Which instruction set is chosen, and what is said when the one asked for is not to be had."""

import pytest

from sequoia_core.native import llama_x86
from sequoia_core.native.instruction_sets import BY_NAME, FASTEST_FIRST, VARIABLE, chosen

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


def test_a_processor_without_any_is_a_reason(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    on(monkeypatch, "neon")
    assert chosen() == (None, "the processor has neither AVX-512 nor AVX2")
    assert llama_x86.compiled() == chosen()


def test_one_asked_for_is_taken_even_where_a_faster_one_is_here(monkeypatch):
    on(monkeypatch, VECTORS)
    for name in ("avx2", "avx512", "amx-emulated", "avx512-bf16-emulated"):
        monkeypatch.setenv(VARIABLE, name)
        assert chosen()[0].name == name


def test_one_that_the_processor_lacks_is_a_reason(monkeypatch):
    on(monkeypatch, "avx2 fma avx512f")
    monkeypatch.setenv(VARIABLE, "amx-emulated")
    assert chosen() == (None, f"{VARIABLE}=amx-emulated: the processor lacks avx512bw, avx512dq, avx512vl")


def test_an_unknown_name_is_a_reason(monkeypatch):
    monkeypatch.setenv(VARIABLE, "neon")
    found, reason = chosen()
    assert found is None and reason == f"{VARIABLE}: found 'neon', expected one of {', '.join(BY_NAME)}"


def test_each_has_a_name_and_a_description_of_its_own():
    assert len(BY_NAME) == len({found.description for found in BY_NAME.values()}) == 6
    assert not any(found.emulated for found in FASTEST_FIRST)
