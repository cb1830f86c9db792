"""Small GGUF files for tests: converted demo models and random models of several architectures."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
VOCAB = 64
HEADS = 4
GROUPS = 2
HEAD = 16
LAYERS = 2
CONTEXT = 256
ARCHITECTURES = ("llama", "gemma3")


def need_llama_cpp() -> None:
    """Skip a test if xllamacpp or gguf is missing; fail if CI requires them."""
    lacking = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
    if lacking:
        reason = f"needs {', '.join(lacking)} (the extra `real`)"
        (pytest.fail if os.environ.get("SEQUOIA_REAL") == "required" else pytest.skip)(reason)


def write_demo(name: str, out: Path, dtype: str) -> Path:
    """Convert a demo model with the shipped script."""
    from scripts.make_gguf import write_gguf

    write_gguf(ROOT / "assets" / "demo" / name, out, dtype=dtype)
    return out


def write_random(
    architecture: str, out: Path, *, seed: int = 0, vocab: int = VOCAB, context: int = CONTEXT, part_tensors: int = 0
) -> Path:
    """Write a model with random weights and a byte-level tokenizer of `vocab` tokens without an end token.

    Args:
        part_tensors: tensors per part of a split file; 0 for a single file.
    """
    import gguf

    width = 64
    inner = 96
    draw = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(out, architecture, split_max_tensors=part_tensors)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocab)
    if architecture == "gemma3":
        writer.add_sliding_window(12)  # shorter than the texts
    letters = [chr(code) for code in range(ord("!"), ord("!") + vocab - 1)]
    letters.append(letters[0] + letters[1])  # the only merge
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(letters)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_add_bos_token(False)

    def add(name: str, *shape: int, scale: float = 0.3, around: float = 0.0) -> None:
        values = around + scale * draw.standard_normal(shape)
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", vocab, width, scale=1.0)
    add("output_norm.weight", width, scale=0.1, around=1.0)
    if architecture != "gemma3":  # its embedding is tied
        add("output.weight", vocab, width)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norms = ["attn_norm", "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if architecture == "gemma3" else []
        for norm in norms:
            add(f"{block}.{norm}.weight", width, scale=0.1, around=1.0)
        for letter, size in {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD}.items():
            add(f"{block}.attn_{letter}.weight", size, width)
            if architecture == "gemma3" and letter != "v":
                add(f"{block}.attn_{letter}_norm.weight", HEAD, scale=0.1, around=1.0)
        for part in ("gate", "up"):
            add(f"{block}.ffn_{part}.weight", inner, width)
        add(f"{block}.attn_output.weight", width, HEADS * HEAD)
        add(f"{block}.ffn_down.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def write_vocabulary(
    out: Path, model: str, tokens: list[str], *, types: dict[int, int] | None = None, architecture="llama", **fields
) -> Path:
    """Write a file with a vocabulary and no weights.

    Args:
        model: "gpt2" (byte pairs), "llama" (SentencePiece) or "bert" (word pieces).
        types: id -> token type other than NORMAL.
        fields: entries of `tokenizer.ggml`, such as pre="qwen2", merges=[...], scores=[...], bos_token_id=1.
    """
    import gguf

    writer = gguf.GGUFWriter(out, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types([(types or {}).get(token, gguf.TokenType.NORMAL) for token in range(len(tokens))])
    for name, value in fields.items():
        if name == "chat_template":
            writer.add_chat_template(value)
            continue
        add = {list: writer.add_array, str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}[
            type(value)
        ]
        add(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
