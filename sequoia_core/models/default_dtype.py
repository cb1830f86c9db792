"""A pair's default dtype, chosen by a deterministic rule without timing.

The default is the dtype of the stored target weights if this machine supports it natively: on a GPU, and for bfloat16
also on a CPU with AMX or AVX-512-BF16, or with compiled matrix products for the model. Otherwise it is float32.
This module does not import torch, so that pages can show the default before anything is loaded.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files.dtypes import DTYPES, DefaultDtype
from ..files.extras import provided
from ..files.model_names import DEMO_PAIR, model_folder
from ..files.safe_files import read_bytes, read_json
from .device import has_gpu
from .model_sources import claim
from .processor import processor_flags

# safetensors' names for the dtypes of unquantized weights
STORED_DTYPES = {"F64": "float64", **{dtype.stored: name for name, dtype in DTYPES.items()}}
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


def default_dtype(target: str | os.PathLike | None = None, *, gpu: bool | None = None) -> DefaultDtype:
    """Return the default dtype of a pair with this target.

    Args:
        target: a folder, hub id or GGUF file; None for the demo target. A target that is not on this machine yet is
            treated as float32.
        gpu: whether the pair runs on a GPU; None to check whether one is available.
    """
    name = DEMO_PAIR / "target" if target is None else target
    files = claim(name)
    fixed = None if files is None else files.fixed_dtype()
    if fixed is not None:
        return fixed
    folder = model_folder(name)
    if folder is None:
        return DefaultDtype("float32", "its files are not on this machine yet")
    try:
        config = read_json(read_bytes(Path(folder) / "config.json"))
    except (OSError, ValueError):  # loading reports these errors
        config = None
    config = config if isinstance(config, dict) else {}
    return dtype_for(_stored(Path(folder), config), config, gpu=has_gpu() if gpu is None else gpu)


def dtype_for(stored: str, config: Mapping[str, Any], *, gpu: bool) -> DefaultDtype:
    """Return the default dtype for weights stored in a dtype, given the fields of config.json."""
    if stored not in ("bfloat16", "float16"):
        return DefaultDtype("float32", f"stored in {stored}")
    if gpu:
        return DefaultDtype(stored, "as stored")
    if stored == "bfloat16":
        if any(compiles(config) for compiles in provided("compiled_products")):
            return DefaultDtype(stored, "as stored, with compiled matrix products")
        if set(BFLOAT16_FLAGS) & set(processor_flags().split()):
            return DefaultDtype(stored, "as stored; the processor supports it natively")
    return DefaultDtype("float32", f"stored in {stored}, which this processor does not support natively")


def _stored(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the dtype of most of a model's stored weights, or the one in its config if that is unknown."""
    from safetensors import safe_open

    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors"))[:1]:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():
                    part = file.get_slice(name)
                    if part.get_dtype() in STORED_DTYPES:
                        counts[STORED_DTYPES[part.get_dtype()]] += math.prod(part.get_shape())
        except Exception:  # loading reports the error
            break
    return counts.most_common(1)[0][0] if counts else str(config.get("dtype") or config.get("torch_dtype") or "float32")
