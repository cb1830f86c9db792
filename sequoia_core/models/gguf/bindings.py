"""llama.cpp's C library by ctypes: where it is, the few functions and structures that we use, what it reports.

The wheel xllamacpp exports the C interface, prebuilt for CPU and Metal on PyPI and for CUDA, ROCm and Vulkan on its own
index. A library that the user built is named by SEQUOIA_LLAMA_CPP. Structures are passed by value and their layout
changes with llama.cpp's versions, so `load` compares the library's defaults with the documented ones (llama.h of
`TESTED`), and refuses another layout.
"""

import ctypes
import importlib.util
import os
import weakref
from collections import deque
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

TESTED = "build 11549 (October 2026)"
VARIABLE = "SEQUOIA_LLAMA_CPP"
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
NO_TOKEN = -1  # the id of a token that does not exist
CONTROL = 8  # of enum llama_token_attr
_ERROR = 4  # of enum ggml_log_level


class ModelParams(ctypes.Structure):
    """llama_model_params."""

    _fields_ = [
        ("devices", c_void_p), ("tensor_buft_overrides", c_void_p), ("n_gpu_layers", c_int32), ("split_mode", c_int32),
        ("load_mode", c_int32), ("lazy_mode", c_int32), ("main_gpu", c_int32), ("tensor_split", c_void_p),
        ("progress_callback", c_void_p), ("progress_callback_user_data", c_void_p), ("kv_overrides", c_void_p),
        ("vocab_only", c_bool), ("check_tensors", c_bool), ("use_extra_bufts", c_bool), ("no_host", c_bool),
        ("no_alloc", c_bool), ("load_mtp", c_bool),
    ]  # fmt: skip


class ContextParams(ctypes.Structure):
    """llama_context_params."""

    _fields_ = [
        ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32), ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32), ("n_threads_batch", c_int32), ("ctx_type", c_int32), ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32), ("attention_type", c_int32), ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float), ("rope_freq_scale", c_float), ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float), ("yarn_beta_fast", c_float), ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32), ("defrag_thold", c_float), ("cb_eval", c_void_p), ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32), ("type_v", c_int32), ("moe_cache_size", c_size_t), ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p), ("embeddings", c_bool), ("offload_kqv", c_bool), ("no_perf", c_bool),
        ("op_offload", c_bool), ("swa_full", c_bool), ("kv_unified", c_bool), ("samplers", c_void_p),
        ("n_samplers", c_size_t), ("ctx_other", c_void_p),
    ]  # fmt: skip


class Batch(ctypes.Structure):
    """llama_batch: tokens, their positions, the sequences that each belongs to, and which rows of logits are wanted."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", c_void_p), ("embd", c_void_p), ("pos", c_void_p), ("n_seq_id", c_void_p),
        ("seq_id", c_void_p), ("logits", c_void_p),
    ]  # fmt: skip


_MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "use_extra_bufts": True, "load_mtp": False}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_threads": 4, "rope_scaling_type": -1,
    "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0, "type_k": 1, "type_v": 1,
    "moe_cache_size": 0, "embeddings": False, "offload_kqv": True, "no_perf": True, "swa_full": True,
    "kv_unified": False, "n_samplers": 0, "ctx_other": None,
}  # fmt: skip
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_state_get_size": (c_size_t, (c_void_p,)),
    "llama_state_get_data": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "llama_state_set_data": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_type": (c_int32, (c_void_p,)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, c_int32)),
    "llama_vocab_get_attr": (c_int32, (c_void_p, c_int32)),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_n_params": (c_uint64, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_diffusion": (c_bool, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_memory_seq_cp": (None, (c_void_p, c_int32, c_int32, c_int32, c_int32)),
    "llama_memory_seq_keep": (None, (c_void_p, c_int32)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits": (POINTER(c_float), (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_synchronize": (None, (c_void_p,)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
}
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class Library:
    """llama.cpp's functions, and the last errors that it reported."""

    def __init__(self, path: Path) -> None:
        try:
            self.c: Any = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self.c, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise ValueError(f"{path}: found no usable library ({error}), expected llama.cpp's of {TESTED}") from error
        self._check_layout(path)
        self._errors: deque[str] = deque(maxlen=4)
        self._callback = _LOG_CALLBACK(self._log)  # held, or it would be freed
        self.c.llama_log_set(self._callback, None)
        self.c.llama_backend_init()

    def _check_layout(self, path: Path) -> None:
        for params, wanted in (
            (self.c.llama_model_default_params(), _MODEL_DEFAULTS),
            (self.c.llama_context_default_params(), _CONTEXT_DEFAULTS),
        ):
            for name, value in wanted.items():
                if (found := getattr(params, name)) != value:
                    raise ValueError(
                        f"{path}: found {found!r} as the default of {name}, expected {value!r} as in {TESTED}: a "
                        "version of llama.cpp whose options lie elsewhere"
                    )

    def _log(self, level: int, text: bytes, _data: int | None) -> None:
        if level == _ERROR:
            self._errors.append(" ".join(text.decode("utf-8", "replace").split()))

    def defined_token(self, vocab: int, fields: Mapping[str, Any], name: str) -> int:
        """Return a file's token "bos" or "eos"; `NO_TOKEN` where the file has none.

        llama.cpp then assumes one by its number: in vocabularies of byte pairs that is a comma or the like.
        """
        token = int(getattr(self.c, f"llama_vocab_{name}")(vocab))
        is_named = f"tokenizer.ggml.{name}_token_id" in fields
        is_defined = token >= 0 and (is_named or self.c.llama_vocab_get_attr(vocab, token) & CONTROL)
        return token if is_defined else NO_TOKEN

    def error(self) -> str:
        """Return what was reported since the last time, in one line, the first cause first."""
        words = self._errors[0] if self._errors else "no reason given"
        self._errors.clear()
        return words[:300]


@cache
def load() -> Library:
    """Return llama.cpp's library, loaded once."""
    named = os.environ.get(VARIABLE)
    if named:
        return Library(Path(named).expanduser())
    spec = importlib.util.find_spec("xllamacpp")
    folders = [] if spec is None else spec.submodule_search_locations or []
    paths = [path for folder in folders for kind in ("so", "pyd", "dylib") for path in Path(folder).glob(f"*.{kind}")]
    if not paths:
        raise ValueError(
            "GGUF models: found no llama.cpp, expected the package xllamacpp (pip install 'sequoia-studio[gguf]') or "
            f"{VARIABLE}=/path/to/libllama.so"
        )
    return Library(paths[0])


class Weights:
    """A model in llama.cpp's memory, freed when nothing uses it any more; options are fields of llama_model_params."""

    def __init__(self, library: Library, path: Path, name: str, **options: Any) -> None:
        params = library.c.llama_model_default_params()
        for option, value in options.items():
            setattr(params, option, value)
        library.error()  # what was reported for others is not this file's fault
        self.address = library.c.llama_model_load_from_file(os.fsencode(path), params)
        if not self.address:
            raise ValueError(f"{name}: found a file that llama.cpp refuses ({library.error()}), expected a whole model")
        weakref.finalize(self, library.c.llama_model_free, self.address).atexit = False
