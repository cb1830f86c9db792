"""ctypes bindings for the part of llama.cpp's C library that this package uses.

The wheel xllamacpp exports the C interface; prebuilt wheels are on PyPI for CPU and Metal, and on its own index for
CUDA, ROCm and Vulkan. SEQUOIA_LLAMA_CPP is the path of a library that the user built. Structures are passed by value,
and their layout changes between versions, so `Library` compares the defaults with those in llama.h of the build
`TESTED` and rejects different layouts.
"""

import ctypes
import importlib.util
import os
import re
import weakref
from collections import deque
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TESTED = "build 11549 (October 2026)"
LIBRARY_VARIABLE = "SEQUOIA_LLAMA_CPP"
CACHE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
# The id that llama.cpp returns for a token that does not exist.
NO_TOKEN = -1
# A member of enum llama_token_attr.
CONTROL = 8
# A member of enum ggml_log_level.
_ERROR = 4
_TYPES: dict[str, Any] = {
    "void": None,
    "pointer": ctypes.c_void_p,
    "string": ctypes.c_char_p,
    "floats": ctypes.POINTER(ctypes.c_float),
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
}


def _fields(declarations: str) -> list[tuple[str, Any]]:
    """Parse a structure's fields: on each line, a type followed by one or more names."""
    lines = [line.split() for line in declarations.strip().splitlines()]
    return [(name, _TYPES[field_type]) for field_type, *names in lines for name in names]


class ModelParams(ctypes.Structure):
    """The structure llama_model_params."""

    _fields_ = _fields("""
        pointer devices tensor_buft_overrides
        int32 n_gpu_layers split_mode load_mode lazy_mode main_gpu
        pointer tensor_split progress_callback progress_callback_user_data kv_overrides
        bool vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp
    """)


class ContextParams(ctypes.Structure):
    """The structure llama_context_params."""

    _fields_ = _fields("""
        uint32 n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq
        int32 n_threads n_threads_batch ctx_type rope_scaling_type pooling_type attention_type flash_attn_type
        float rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow
        uint32 yarn_orig_ctx
        float defrag_thold
        pointer cb_eval cb_eval_user_data
        int32 type_k type_v
        size_t moe_cache_size
        pointer abort_callback abort_callback_data
        bool embeddings offload_kqv no_perf op_offload swa_full kv_unified
        pointer samplers
        size_t n_samplers
        pointer ctx_other
    """)


class Batch(ctypes.Structure):
    """The structure llama_batch: tokens, their positions and sequences, and flags that request rows of logits."""

    _fields_ = _fields("""
        int32 n_tokens
        pointer token embd pos n_seq_id seq_id logits
    """)


_TYPES |= {"model_params": ModelParams, "context_params": ContextParams, "batch": Batch}
_FUNCTIONS = """
    void llama_backend_init()
    model_params llama_model_default_params()
    context_params llama_context_default_params()
    pointer llama_model_load_from_file(string, model_params)
    void llama_model_free(pointer)
    pointer llama_init_from_model(pointer, context_params)
    void llama_free(pointer)
    pointer llama_get_memory(pointer)
    size_t llama_state_get_size(pointer)
    size_t llama_state_get_data(pointer, pointer, size_t)
    size_t llama_state_set_data(pointer, pointer, size_t)
    pointer llama_model_get_vocab(pointer)
    int32 llama_vocab_n_tokens(pointer)
    bool llama_vocab_is_eog(pointer, int32)
    int32 llama_vocab_type(pointer)
    string llama_vocab_get_text(pointer, int32)
    int32 llama_vocab_get_attr(pointer, int32)
    int32 llama_vocab_bos(pointer)
    int32 llama_vocab_eos(pointer)
    bool llama_vocab_get_add_bos(pointer)
    int32 llama_model_n_ctx_train(pointer)
    uint64 llama_model_n_params(pointer)
    bool llama_model_is_recurrent(pointer)
    bool llama_model_is_hybrid(pointer)
    bool llama_model_is_diffusion(pointer)
    bool llama_model_has_encoder(pointer)
    bool llama_memory_seq_rm(pointer, int32, int32, int32)
    void llama_memory_seq_cp(pointer, int32, int32, int32, int32)
    void llama_memory_seq_keep(pointer, int32)
    int32 llama_decode(pointer, batch)
    floats llama_get_logits(pointer)
    void llama_set_n_threads(pointer, int32, int32)
    void llama_synchronize(pointer)
    int32 llama_tokenize(pointer, string, int32, pointer, int32, bool, bool)
    int32 llama_token_to_piece(pointer, int32, string, int32, int32, bool)
"""
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "use_extra_bufts": True, "load_mtp": False}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_threads": 4,
    "rope_scaling_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
    "ctx_other": None,
}
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    """llama.cpp's functions and the most recent errors that it logged."""

    def __init__(self, path: Path) -> None:
        try:
            self.c: Any = ctypes.CDLL(str(path))
            for result, name, arguments in re.findall(r"(\w+) (\w+)\((.*)\)", _FUNCTIONS):
                function = getattr(self.c, name)
                function.restype = _TYPES[result]
                function.argtypes = [_TYPES[argument] for argument in re.findall(r"\w+", arguments)]
        except (OSError, AttributeError) as error:
            raise ValueError(f"{path}: found no usable library ({error}), expected llama.cpp {TESTED}") from error
        self._check_layout(path)
        self._errors: deque[str] = deque(maxlen=4)
        # Keep a reference, since llama.cpp calls it later.
        self._callback = _LOG_CALLBACK(self._log)
        self.c.llama_log_set(self._callback, None)
        self.c.llama_backend_init()

    def _check_layout(self, path: Path) -> None:
        for params, defaults in (
            (self.c.llama_model_default_params(), _MODEL_DEFAULTS),
            (self.c.llama_context_default_params(), _CONTEXT_DEFAULTS),
        ):
            for name, value in defaults.items():
                if (found := getattr(params, name)) != value:
                    raise ValueError(
                        f"{path}: found {found!r} as the default of {name}, expected {value!r} as in {TESTED}: this "
                        "version of llama.cpp lays out its options differently"
                    )

    def _log(self, level: int, text: bytes, _data: int | None) -> None:
        if level == _ERROR:
            self._errors.append(" ".join(text.decode("utf-8", "replace").split()))

    def defined_token(self, vocab: int, fields: Mapping[str, Any], name: str) -> int:
        """Return a file's "bos" or "eos" token, or `NO_TOKEN` if it defines none.

        If a file defines none, llama.cpp assumes a fixed id, which is an ordinary token, such as a comma, in byte-pair
        vocabularies.
        """
        token = int(getattr(self.c, f"llama_vocab_{name}")(vocab))
        is_named = f"tokenizer.ggml.{name}_token_id" in fields
        is_defined = token >= 0 and (is_named or self.c.llama_vocab_get_attr(vocab, token) & CONTROL)
        return token if is_defined else NO_TOKEN

    def pop_error(self) -> str:
        """Return the first error logged since the last call, on one line."""
        error = self._errors[0] if self._errors else "no reason given"
        self._errors.clear()
        return error[:300]


@cache
def load_llama_cpp() -> Library:
    """Return llama.cpp's library, which is loaded only once."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Library(Path(named).expanduser())
    spec = importlib.util.find_spec("xllamacpp")
    folders = [] if spec is None else spec.submodule_search_locations or []
    suffixes = ("so", "pyd", "dylib")
    paths = [path for folder in folders for suffix in suffixes for path in Path(folder).glob(f"*.{suffix}")]
    if not paths:
        raise ValueError(
            "GGUF models: found no llama.cpp, expected the package xllamacpp (pip install 'sequoia-studio[gguf]') or "
            f"{LIBRARY_VARIABLE}=/path/to/libllama.so"
        )
    return Library(paths[0])


class Weights:
    """A model in llama.cpp's memory, freed with this object; `options` are fields of llama_model_params."""

    def __init__(self, library: Library, path: Path, name: str, **options: Any) -> None:
        params = library.c.llama_model_default_params()
        for option, value in options.items():
            setattr(params, option, value)
        # Discard errors from other files.
        library.pop_error()
        self.address = library.c.llama_model_load_from_file(os.fsencode(path), params)
        if not self.address:
            raise ValueError(
                f"{name}: found a file that llama.cpp rejects ({library.pop_error()}), expected a complete model"
            )
        weakref.finalize(self, library.c.llama_model_free, self.address).atexit = False
