"""The default dtype of a pair, by a rule that times nothing, so that the answer is always the same.

The dtype that the target's weights are stored in, where this machine computes in it natively for that model: on a GPU;
for bfloat16 also on a CPU with AMX or AVX-512-BF16, and wherever its products are compiled. Else float32.
Loads no torch, so that a page can show it before anything is loaded.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..files.dtypes import DTYPES
from ..files.gguf_header import is_gguf, read_gguf_header
from ..files.model_names import DEMO_PAIR, model_folder, model_source
from ..files.safe_files import read_bytes, read_json
from ..native import instruction_sets
from ..native.compile_c import can_compile
from ..native.processor import processor_flags
from .device import has_gpu

# as safetensors files spell them: dtypes that hold weights themselves
NAMES = {"F64": "float64", **{dtype.stored: name for name, dtype in DTYPES.items()}}
# Where most weights are not of `torch.nn.Linear`, so that PyTorch multiplies: model types, and fields of fused experts.
OTHER_LAYERS = ("gpt2", "openai-gpt", "ctrl")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


class DefaultDtype(NamedTuple):
    """A dtype as options spell it, and the reason in a few words."""

    dtype: str
    reason: str


def default_dtype(target: str | os.PathLike | None = None, *, gpu: bool | None = None) -> DefaultDtype:
    """Return the dtype that a pair with this target is loaded in.

    Args:
        target: a folder, hub id or GGUF file; None for the demo target. One that is not on this machine
            yet counts as float32.
        gpu: whether it runs on a GPU; None where a GPU is found.
    """
    if target is not None and is_gguf(target):
        try:
            return DefaultDtype(read_gguf_header(model_source(target)).dtype, "as the file stores it, by llama.cpp")
        except (OSError, ValueError):  # loading reports the fault
            return DefaultDtype("GGUF", "its file cannot be read")
    folder = model_folder(DEMO_PAIR / "target" if target is None else target)
    if folder is None:
        return DefaultDtype("float32", "its files are not here yet")
    try:
        config = read_json(read_bytes(Path(folder) / "config.json"))
    except (OSError, ValueError):  # loading reports the fault
        config = None
    config = config if isinstance(config, dict) else {}
    return dtype_for(_stored(Path(folder), config), config, gpu=has_gpu() if gpu is None else gpu)


def dtype_for(stored: str, config: Mapping[str, Any], *, gpu: bool) -> DefaultDtype:
    """Return the dtype for weights stored in a dtype, of a model with the fields of a config.json."""
    if stored not in ("bfloat16", "float16"):
        return DefaultDtype("float32", f"stored in {stored}")
    if gpu:
        return DefaultDtype(stored, "as stored")
    if stored == "bfloat16":
        if _has_compiled_products(config):
            return DefaultDtype(stored, "as stored; its products are compiled")
        if set(BFLOAT16_FLAGS) & set(processor_flags().split()):
            return DefaultDtype(stored, "as stored; the processor computes in it")
    return DefaultDtype("float32", f"stored in {stored}, in which this processor does not compute natively")


def _stored(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the dtype that most numbers of a model are stored in; or the one in its config."""
    from safetensors import safe_open

    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors"))[:1]:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():
                    part = file.get_slice(name)
                    if part.get_dtype() in NAMES:
                        counts[NAMES[part.get_dtype()]] += math.prod(part.get_shape())
        except Exception:  # loading reports any fault of the file
            break
    return counts.most_common(1)[0][0] if counts else str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _has_compiled_products(config: Mapping[str, Any]) -> bool:
    """Whether compiled code multiplies most weights of a model, as far as its config.json tells."""
    if not can_compile() or instruction_sets.chosen()[0] is None:
        return False
    text = config.get("text_config")
    fields = {**config, **(text if isinstance(text, dict) else {})}
    hidden = fields.get("hidden_size")
    return (
        isinstance(hidden, int)
        and hidden % 32 == 0
        and fields.get("model_type") not in OTHER_LAYERS
        and not any(fields.get(name) for name in EXPERTS)
    )
