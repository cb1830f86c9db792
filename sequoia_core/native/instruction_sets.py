"""The instruction sets that compiled passes are written for, and which of them this processor has.

SEQUOIA_INSTRUCTIONS=NAME in the environment forces one: a slower one that the processor also has, or one whose new
instructions are emulated in software (`amx_emulation.h`), which runs on any processor with AVX-512. This is for tests
and work on the C code: an emulated set is never chosen otherwise.
"""

import os
from dataclasses import dataclass

from . import compile_c
from .processor import processor_flags

VARIABLE = "SEQUOIA_INSTRUCTIONS"
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One way of multiplying on x86 processors.

    Attributes:
        name: its value of SEQUOIA_INSTRUCTIONS.
        description: for people.
        needs: what the processor must have, as Linux spells it.
        flags: for the compiler.
        products: the C header with its products.
        emulated: whether some instructions are done in software.
    """

    name: str
    description: str
    needs: tuple[str, ...]
    flags: tuple[str, ...]
    products: str
    emulated: bool = False

    @property
    def is_here(self) -> bool:
        """Whether this processor can run it."""
        return set(self.needs) <= set(processor_flags().split())


def _compiler_flags(features: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("-m" + feature.replace("_", "-").replace("avx512-", "avx512") for feature in features)


_BFLOAT16 = (*_AVX512, "avx512_bf16")
_AMX = (*_BFLOAT16, "amx_tile", "amx_bf16")
_WITH_BFLOAT16 = "-DWITH_BFLOAT16"
FASTEST_FIRST = (
    InstructionSet("amx", "AMX", _AMX, (*_compiler_flags(_AMX), _WITH_BFLOAT16), "products_amx.h"),
    InstructionSet(
        "avx512-bf16", "AVX-512 with bfloat16", _BFLOAT16, (*_compiler_flags(_BFLOAT16), _WITH_BFLOAT16),
        "products_avx512.h",
    ),
    InstructionSet("avx512", "AVX-512", _AVX512, _compiler_flags(_AVX512), "products_avx512.h"),
    InstructionSet("avx2", "AVX2", ("avx2", "fma"), _compiler_flags(("avx2", "fma")), "products_avx2.h"),
)  # fmt: skip
EMULATED = (
    InstructionSet(
        "amx-emulated", "AMX, emulated", _AVX512, (*_compiler_flags(_AVX512), _WITH_BFLOAT16),
        "products_amx.h", True,
    ),
    InstructionSet(
        "avx512-bf16-emulated", "AVX-512 with bfloat16, emulated", _AVX512,
        (*_compiler_flags(_AVX512), _WITH_BFLOAT16), "products_avx512.h", True,
    ),
)  # fmt: skip
BY_NAME = {found.name: found for found in (*FASTEST_FIRST, *EMULATED)}


def chosen() -> tuple[InstructionSet | None, str]:
    """Return the fastest instruction set there is here, or the one asked for; or None and the reason why not."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in BY_NAME:
        return None, f"{VARIABLE}: found {name[:40]!r}, expected one of {', '.join(BY_NAME)}"
    found = BY_NAME[name] if name else next((one for one in FASTEST_FIRST if one.is_here), None)
    if found is None:
        return None, "the processor has neither AVX-512 nor AVX2"
    if not found.is_here:
        lacking = sorted(set(found.needs) - set(processor_flags().split()))
        return None, f"{VARIABLE}={name}: the processor lacks {', '.join(lacking)}"
    return found, ""


def instructions_in_use() -> str | None:
    """Return the instruction set in use, which may differ between processors of one name; None without any."""
    found, _ = chosen()
    return None if found is None else found.description


def check_environment() -> None:
    """Raise ValueError where the environment asks for a set that is not available, which would be ignored otherwise."""
    compile_c.check_switch()
    found, reason = chosen()
    if found is None and os.environ.get(VARIABLE):
        raise ValueError(reason if reason.startswith(f"{VARIABLE}:") else f"{reason}, expected one that it has")
