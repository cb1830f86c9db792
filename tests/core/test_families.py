"""Common model families, loaded from disk: greedy tree decoding equals `generate`.

The models are tiny and random. Families and settings that do not support trees are refused.
"""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from sequoia_core.decoding.loop import decode
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.tree_pass_check import TOLERANCE, check_tree_pass
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import around_passes, tokens_of

LLAMA_LIKE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
SHORT_WINDOW = {"sliding_window": 12}  # shorter than the run, so old tokens leave the window
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
FAMILIES = {
    "Llama": LLAMA_LIKE,
    "Qwen2": LLAMA_LIKE,
    "Qwen3": LLAMA_LIKE | {"head_dim": 8},
    "Mistral": LLAMA_LIKE | SHORT_WINDOW,
    "Gemma2": LLAMA_LIKE | SHORT_WINDOW | {"head_dim": 8},
    "Gemma3": LLAMA_LIKE | SHORT_WINDOW | {"head_dim": 8, "num_hidden_layers": 6},
    "Phi3": LLAMA_LIKE,
    "GPT2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "GPTNeoX": {k: v for k, v in LLAMA_LIKE.items() if k != "num_key_value_heads"},
    "OPT": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "max_position_embeddings": 128,
        "word_embed_proj_dim": 32,
    },
    "Qwen3Moe": LLAMA_LIKE | EXPERTS | {"head_dim": 8, "num_experts": 4},
    "DeepseekV3": LLAMA_LIKE | EXPERTS | LATENT,  # keys are wider than values
    "Gemma4": LLAMA_LIKE
    | SHORT_WINDOW
    | {"head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 6, "hidden_size_per_layer_input": 0},
}
MIXTURES = {family for family, settings in FAMILIES.items() if EXPERTS.items() <= settings.items()}
FIXED = k_ary_tree(2, 3)
ALIBI_FAMILIES = {  # ALiBi derives distances from the order in the cache and ignores positions
    "Bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Mpt": {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "Falcon": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "alibi": True,
        "new_decoder_architecture": False,
    },
}


def build(family: str, **settings) -> transformers.PreTrainedModel:
    known = FAMILIES | ALIBI_FAMILIES
    config_name = f"{family}TextConfig" if family in ("Gemma3", "Gemma4") else f"{family}Config"
    model_name = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**known[family] | settings, eos_token_id=None, bos_token_id=None)
    model = getattr(transformers, model_name)(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.mul_(6)  # with initial weights, attention hardly matters and a wrong mask would go unnoticed
    return model


def save(model: transformers.PreTrainedModel, folder) -> str:
    letters = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet())[: model.config.vocab_size])}
    tokenizer = Tokenizer(BPE(letters, []))  # accepted by the tokenizer class of every family
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def assert_decodes_as_generate(
    folder: str, *, prompt_length: int = 20, new_tokens: int = 40, tree=FIXED, most_steps: int | None = None
) -> None:
    pair = load_pair(folder, folder, device="cpu")
    prompt = [2 + place % 60 for place in range(prompt_length)]
    ids = torch.tensor([prompt])
    wanted = pair.target.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )[0, len(prompt) :].tolist()
    steps = list(decode(prompt, pair, tree=tree, max_new_tokens=new_tokens))
    assert tokens_of(steps) == wanted
    # The draft is the target, so fewer than four tokens per step indicate a wrong mask or position.
    assert len(steps) <= (most_steps or new_tokens // 4)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_identical_to_generate(family, tmp_path):
    folder = save(build(family), tmp_path)
    assert_decodes_as_generate(folder)


@pytest.mark.parametrize("family", ALIBI_FAMILIES)
def test_models_with_distances_by_cache_order_are_refused(family, tmp_path):
    folder = save(build(family), tmp_path / "model")
    reasons = {"Mpt": "found a MptForCausalLM that ignores positions.*ALiBi"}
    named = f"found ALiBi instead of position inputs .{family}ForCausalLM., expected a model that takes positions"
    with pytest.raises(ValueError, match=f"model: {reasons.get(family, named)}") as error:
        load_pair(folder, folder, device="cpu")
    assert "\n" not in str(error.value)


def ignoring_positions(append, session, ids, positions, tree_mask, keep):
    """Number tokens by their order in the cache."""
    return append(ids, torch.arange(session.length, session.length + len(ids)), tree_mask, keep=keep)


def ignoring_the_mask(append, session, ids, positions, tree_mask, keep):
    """Let every token see all earlier tokens."""
    return append(ids, positions, causal_mask(len(ids)), keep=keep)


def losing_the_first_token(append, session, ids, positions, tree_mask, keep):
    """Hide the first token of the text from all later ones, in trees and in plain text."""
    mask = torch.zeros(len(ids), session.length + len(ids))
    mask[:, -tree_mask.shape[1] :] = tree_mask
    mask[0 if session.length else 1 :, 0] = -torch.inf
    return append(ids, positions, mask, keep=keep)


FAULTS = {
    ignoring_positions: "ignores positions",
    ignoring_the_mask: "gives the nodes of a tree different logits than the same tokens in sequence",
    losing_the_first_token: "gives a text different logits with its cache than without",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_load_check_detects_each_fault(family, fault, dtype):
    check_tree_pass(HuggingFaceModel(build(family).to(dtype), "right"))
    with pytest.raises(ValueError, match=rf"wrong: found a \w+ that {FAULTS[fault]}"):
        check_tree_pass(around_passes(HuggingFaceModel(build(family).to(dtype), "wrong"), fault))


def test_one_weight_that_swamps_all_others_is_not_reported_as_a_wrong_mask():
    model = build("Llama").to(torch.bfloat16)
    with torch.no_grad():
        model.model.layers[-1].mlp.up_proj.weight[2, 1] = 1e32
    with pytest.raises(ValueError, match="drowned: found the same logit for every token in bfloat16, .*weight"):
        check_tree_pass(HuggingFaceModel(model, "drowned"))


def test_the_load_check_changes_no_global_state_and_has_margin(demo_pair, monkeypatch):
    random = torch.get_rng_state()
    threads = torch.get_num_threads()
    grad = torch.is_grad_enabled()
    monkeypatch.setattr("sequoia_core.models.tree_pass_check.TOLERANCE", TOLERANCE / 100)
    check_tree_pass(demo_pair.target)
    check_tree_pass(demo_pair.draft)
    assert torch.equal(torch.get_rng_state(), random)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [9.0] * 4,
    "original_max_position_embeddings": 64,
}
LENGTH_DEPENDENT = {  # rotary embeddings whose angles change with the length of the text
    "dynamic": ("Llama", {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, 64, 64),
    "longrope": ("Phi3", LONGROPE, 256, 64),
    "yarn": ("Llama", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}, 128, 128),
}


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("kind", LENGTH_DEPENDENT)
def test_the_context_ends_where_cached_keys_would_be_rotated_differently(kind, tmp_path):
    family, rope, positions, context = LENGTH_DEPENDENT[kind]
    settings = {"rope_parameters": rope, "max_position_embeddings": positions}
    if family == "Phi3":
        settings["original_max_position_embeddings"] = 64
    folder = save(build(family, **settings), tmp_path)
    assert_decodes_as_generate(folder, prompt_length=24, new_tokens=40)  # up to the end of the context of 64
    pair = load_pair(folder, folder, device="cpu")
    assert pair.target.max_context == context
    with pytest.raises(ValueError, match="at most"):
        decode([2] * context, pair, tree=FIXED)
