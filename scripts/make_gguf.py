"""Convert a Llama model and its tokenizer, such as a model of the demo pair, to GGUF.

    python scripts/make_gguf.py assets/demo/target target.gguf --dtype bfloat16

Needs the package gguf (the extra `real`). Send token ids rather than text to llama.cpp, because none of its
pre-tokenizers splits text like the demo tokenizer. Vectors stay float32, as llama.cpp expects.
"""

import argparse
import json
from pathlib import Path

import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}


def write_gguf(folder: Path, out: Path, *, dtype: str = "bfloat16") -> None:
    """Write the model in `folder` (config.json, tokenizer.json, safetensors files) as one GGUF file."""
    import gguf
    from safetensors.torch import load_file

    config, stored = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    if config["model_type"] != "llama" or stored["model"]["type"] != "BPE":
        found = f"{config['model_type']} with a {stored['model']['type']} tokenizer"
        raise ValueError(f"{folder}: found {found}, expected llama with a BPE tokenizer")
    kind = gguf.GGMLQuantizationType[DTYPES[dtype]]
    heads, blocks = (
        {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]},
        config["num_hidden_layers"],
    )
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if dtype == "float32" else f"MOSTLY_{kind.name}"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q"])
    writer.add_head_count_kv(heads["k"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(writer, config, stored)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, blocks)
    shards = sorted(folder.glob("*.safetensors"))
    for name, tensor in (pair for shard in shards for pair in load_file(shard).items()):
        values = tensor.float().numpy()
        # The rotary embedding pairs adjacent elements in llama.cpp, but elements of the two halves in transformers.
        for letter, count in heads.items():
            if name.endswith(f"self_attn.{letter}_proj.weight"):
                values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        held = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        found = names.get_name(name, try_suffixes=(".weight",))
        assert found is not None, f"{name} is not a Llama tensor"
        writer.add_tensor(found, gguf.quantize(np.ascontiguousarray(values), held), raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer, config: dict, stored: dict) -> None:
    import gguf

    tokens = [token for token, _ in sorted(stored["model"]["vocab"].items(), key=lambda pair: pair[1])]
    special = {each["id"] for each in stored["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = (gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL for id in range(len(tokens)))
    writer.add_token_types(list(kinds))
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    for end, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        if config.get(f"{end}_token_id") is not None:
            add(config[f"{end}_token_id"])
    writer.add_add_bos_token(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    args = parser.parse_args()
    write_gguf(args.folder, args.out, dtype=args.dtype)


if __name__ == "__main__":
    main()
