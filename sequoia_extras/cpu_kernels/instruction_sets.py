"""The instruction sets that compiled passes support, and those that this processor has.

SEQUOIA_INSTRUCTIONS=NAME selects one: a slower one that the processor also has, or one whose newer instructions are
emulated in software (`amx_emulation.h`) on any processor with AVX-512. Emulation is meant for tests and for work on the
C code, and is never chosen automatically.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sequoia_core.models.processor import processor_flags

from . import compile_c

INSTRUCTIONS_VARIABLE = "SEQUOIA_INSTRUCTIONS"
# Most weights of these models are in Conv1D or fused experts instead of `torch.nn.Linear`, so PyTorch multiplies them.
CONV1D_MODEL_TYPES = ("gpt2", "openai-gpt", "ctrl")
EXPERT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """An instruction set for matrix products on x86 processors.

    Attributes:
        name: the value of SEQUOIA_INSTRUCTIONS that selects it.
        description: display name in messages.
        needs: required processor flags, as Linux spells them.
        products: name of the C header that implements its products.
        emulated: whether some instructions are emulated in software.
    """

    name: str
    description: str
    needs: tuple[str, ...]
    products: str
    emulated: bool = False

    @property
    def flags(self) -> list[str]:
        """Compiler flags that enable it."""
        features = ["-m" + need.replace("_", "-").replace("avx512-", "avx512") for need in self.needs]
        return features if self.name in ("avx2", "avx512") else [*features, "-DWITH_BFLOAT16"]

    @property
    def missing(self) -> set[str]:
        """Required processor flags that this processor lacks."""
        return set(self.needs) - set(processor_flags().split())

    @property
    def is_available(self) -> bool:
        return not self.missing


_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_BFLOAT16 = (*_AVX512, "avx512_bf16")
FASTEST_FIRST = (
    InstructionSet("amx", "AMX", (*_BFLOAT16, "amx_tile", "amx_bf16"), "products_amx.h"),
    InstructionSet("avx512-bf16", "AVX-512 with bfloat16", _BFLOAT16, "products_avx512.h"),
    InstructionSet("avx512", "AVX-512", _AVX512, "products_avx512.h"),
    InstructionSet("avx2", "AVX2", ("avx2", "fma"), "products_avx2.h"),
)
EMULATED = (
    InstructionSet("amx-emulated", "AMX, emulated", _AVX512, "products_amx.h", True),
    InstructionSet("avx512-bf16-emulated", "AVX-512 with bfloat16, emulated", _AVX512, "products_avx512.h", True),
)
INSTRUCTION_SETS = {instructions.name: instructions for instructions in (*FASTEST_FIRST, *EMULATED)}


def choose_instruction_set() -> tuple[InstructionSet | None, str]:
    """Return the requested or the fastest available instruction set and an empty string, or None and the reason."""
    name = os.environ.get(INSTRUCTIONS_VARIABLE, "")
    if name and name not in INSTRUCTION_SETS:
        return None, f"{INSTRUCTIONS_VARIABLE}: found {name[:40]!r}, expected one of {', '.join(INSTRUCTION_SETS)}"
    if name:
        requested = INSTRUCTION_SETS[name]
        if requested.missing:
            lacking = ", ".join(sorted(requested.missing))
            return None, f"{INSTRUCTIONS_VARIABLE}={name}: the processor lacks {lacking}"
        return requested, ""
    fastest = next((instructions for instructions in FASTEST_FIRST if instructions.is_available), None)
    return fastest, "" if fastest else "the processor has neither AVX-512 nor AVX2"


def instructions_in_use() -> str | None:
    """Return the current instruction set's description, which the processor's name does not imply, or None."""
    instructions, _ = choose_instruction_set()
    return None if instructions is None else instructions.description


def compiles_products(config: Mapping[str, Any]) -> bool:
    """Return whether compiled code multiplies most of a model's weights, judging by its config.json."""
    if not compile_c.can_compile() or choose_instruction_set()[0] is None:
        return False
    text = config.get("text_config")
    fields = {**config, **(text if isinstance(text, dict) else {})}
    hidden = fields.get("hidden_size")
    return (
        isinstance(hidden, int)
        and hidden % 32 == 0
        and fields.get("model_type") not in CONV1D_MODEL_TYPES
        and not any(fields.get(name) for name in EXPERT_FIELDS)
    )


def check_environment() -> None:
    """Raise ValueError if SEQUOIA_NATIVE is invalid or SEQUOIA_INSTRUCTIONS names an unavailable instruction set."""
    compile_c.check_native_variable()
    instructions, reason = choose_instruction_set()
    if instructions is None and os.environ.get(INSTRUCTIONS_VARIABLE):
        raise ValueError(reason if ": found" in reason else f"{reason}, expected an instruction set that it supports")
