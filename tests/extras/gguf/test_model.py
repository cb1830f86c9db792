"""GGUF files loaded as a pair: decoding, rejected files and options, and memory."""

import gc

import psutil
import pytest
import torch

from sequoia_core import SamplingConfig, decode, load_pair
from sequoia_core.decoding.loop import autoregressive
from sequoia_core.models.configured_context import configured_context
from sequoia_core.trees.plain import k_ary_tree
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.evaluation.losslessness import check_losslessness
from sequoia_extras.gguf import bindings
from sequoia_extras.gguf.model import GGUFModel, LlamaCppOptions
from tests.conftest import calibration_of, pair_of, tokens_of
from tests.gguf_files import ROOT, write_random, write_vocabulary

pytestmark = pytest.mark.usefixtures("needed")
PROMPT = "def read_lines(path):\n"


@pytest.fixture(scope="module")
def pair(demo_files):
    return load_pair(demo_files["target"], demo_files["draft"], tokenizer=ROOT / "assets" / "demo" / "target")


def test_pair_of_files_is_self_contained(demo_files, demo_pair, pair):
    alone = load_pair(demo_files["target"], "none")
    assert alone.draft is None and configured_context(str(demo_files["target"])) == alone.max_context
    assert alone.tokenizer.get_vocab() == demo_pair.tokenizer.get_vocab()
    for model in (pair.target, pair.draft, alone.target):
        assert model.dtype == "F16" and model.backend == "llama.cpp" and model.offload is None
        assert model.max_context == demo_pair.max_context and model.eos_ids == demo_pair.target.eos_ids
        assert model.vocab_size == demo_pair.target.vocab_size
    ids = demo_pair.tokenizer.encode(PROMPT)
    assert pair.tokenizer.encode(PROMPT) == ids
    found = pair.target.plain_logits(torch.tensor(ids)).log_softmax(-1).exp()
    wanted = demo_pair.target.plain_logits(torch.tensor(ids)).log_softmax(-1).exp()
    assert (found - wanted).abs().sum(-1).max() < 0.05  # float16 weights lose 13 bits


POLICIES = {
    "static": lambda: k_ary_tree(2, 4),
    "specexec": lambda: SpecExecTree(max_size=24, max_depth=5, beam=4),
    "adaptive": lambda: AdaptiveTree(profile=None, max_size=24, calibration=calibration_of(0.8)),
    "lookup": lambda: LookupTree(TextIndex(), max_size=16),
    "hybrid": lambda: HybridTree(index=TextIndex(), profile=None, max_size=24, calibration=calibration_of(0.8)),
}


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("name", POLICIES)
def test_greedy_text_differs_from_autoregressive_only_at_near_ties(pair, name):
    ids = pair.tokenizer.encode(PROMPT)
    plain = tokens_of(autoregressive(ids, pair_of(pair.target.ignore_eos()), max_new_tokens=48))
    steps = list(decode(ids, pair_of(pair.target.ignore_eos(), pair.draft), tree=POLICIES[name](), max_new_tokens=48))
    found = tokens_of(steps)
    assert len(found) == 48
    assert len(steps) < 48 or name == "lookup"
    for place, (a, b) in enumerate(zip(found, plain, strict=True)):
        if a != b:  # the first difference must be a near-tie; then the texts diverge
            row = pair.target.plain_logits(torch.tensor([*ids, *plain[:place]]))[-1]
            assert abs(float(row[a] - row[b])) < 0.05, (place, float(row[a]), float(row[b]))
            break


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize(("name", "verifier"), [("static", "sequoia"), ("static", "specinfer"), ("specexec", "topk")])
def test_sampled_text_follows_the_target(tiny_files, name, verifier, temperature):
    pair = load_pair(tiny_files["target"], tiny_files["draft"])
    tree = k_ary_tree(2, 2) if name == "static" else SpecExecTree(max_size=6, max_depth=2, beam=2, branch=4)
    report = check_losslessness(
        [1, 2, 3],
        pair,
        tree=tree,
        sampling=SamplingConfig(temperature),
        verifier=verifier,
        samples=600,
        new_tokens=2,
        generator=torch.Generator().manual_seed(1),
    )
    assert report.passed and report.degrees_of_freedom > 6, report.p_value


def test_files_and_folders_can_be_paired(demo_files, demo_pair):
    folder = ROOT / "assets" / "demo"
    for target, draft in ((demo_files["target"], folder / "draft"), (folder / "target", demo_files["draft"])):
        mixed = load_pair(target, draft, device="cpu", dtype="float32")
        ids = mixed.tokenizer.encode(PROMPT)
        assert ids == demo_pair.tokenizer.encode(PROMPT)  # the folder's tokenizer, not the file's copy
        steps = list(decode(ids, mixed, tree=k_ary_tree(2, 3), max_new_tokens=24))
        assert sum(len(step.new_tokens) for step in steps) > len(steps)


@pytest.mark.slow
def test_repeated_loads_free_memory(tiny_files):
    def use() -> int:
        pair = load_pair(tiny_files["target"], tiny_files["draft"])
        list(decode([1, 2], pair, tree=k_ary_tree(2, 2), max_new_tokens=4))
        del pair
        gc.collect()
        return psutil.Process().memory_info().rss

    before = [use() for _ in range(15)][-1]
    after = [use() for _ in range(50)][-1]
    assert after - before < 24e6  # one pair with its contexts takes 5 MB


@pytest.mark.parametrize("share", [0.0, 0.001, 0.7], ids=["empty", "cut off in the head", "cut off in the weights"])
def test_broken_files_are_rejected_in_one_line(demo_files, tmp_path, share):
    whole = demo_files["target"].read_bytes()
    (tmp_path / "broken.gguf").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="broken.gguf: found .*expected") as caught:
        load_pair(tmp_path / "broken.gguf", demo_files["draft"], tokenizer=ROOT / "assets/demo/target")
    assert "\n" not in str(caught.value)


def test_recurrent_models_are_rejected(tmp_path, monkeypatch, tiny_files):
    monkeypatch.setattr(bindings.load_llama_cpp().c, "llama_model_is_recurrent", lambda address: True)
    with pytest.raises(ValueError, match="found llama .recurrent., expected a model that uses only attention"):
        GGUFModel(tiny_files["target"], "mine")


def test_unsupported_options_and_pairs_are_rejected(tiny_files, tmp_path):
    target = tiny_files["target"]
    draft = tiny_files["draft"]
    with pytest.raises(ValueError, match="dtype: found 'bfloat16' for GGUF files, expected none"):
        load_pair(target, draft, dtype="bfloat16")
    with pytest.raises(ValueError, match="offload: found 'disk' for a GGUF file"):
        load_pair(target, draft, offload="disk")
    other = write_random("llama", tmp_path / "other.gguf", vocab=9)
    with pytest.raises(ValueError, match="tokenizers differ in one token only: id 7 is"):
        load_pair(other, draft)


def test_options_come_from_llama_cpps_variables(monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_CACHE_TYPE_K", "q8_0")
    monkeypatch.setenv("LLAMA_ARG_N_GPU_LAYERS", "12")
    assert LlamaCppOptions.from_environment() == LlamaCppOptions(12, None, "q8_0", "f16")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "many")
    with pytest.raises(ValueError, match="LLAMA_ARG_THREADS: found 'many', expected a whole number"):
        LlamaCppOptions.from_environment()


def test_cache_type_changes_logits_slightly(tiny_files, monkeypatch):
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    rows = []
    for kind in ("f16", "bf16"):
        for part in "KV":
            monkeypatch.setenv(f"LLAMA_ARG_CACHE_TYPE_{part}", kind)
        rows.append(GGUFModel(tiny_files["target"], kind).plain_logits(ids))
    assert 0 < float((rows[0] - rows[1]).abs().max()) < 0.3


def test_other_library_layouts_are_rejected(monkeypatch):
    monkeypatch.setitem(bindings._CONTEXT_DEFAULTS, "n_batch", 4711)
    with pytest.raises(ValueError, match="found 2048 as the default of n_batch, expected 4711"):
        bindings.Library(bindings.Path(bindings.load_llama_cpp().c._name))


def test_missing_library_gives_install_instructions(monkeypatch):
    monkeypatch.setattr(bindings.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"expected the package xllamacpp \(pip install 'sequoia-studio\[gguf\]'\)"):
        bindings.load_llama_cpp.__wrapped__()
    monkeypatch.setenv(bindings.LIBRARY_VARIABLE, "/nowhere/libllama.so")
    with pytest.raises(ValueError, match=r"/nowhere/libllama.so: found no usable library"):
        bindings.load_llama_cpp.__wrapped__()


def test_split_file_loads_from_its_first_part(tmp_path):
    write_random("llama", tmp_path / "t.gguf", part_tensors=8)
    parts = sorted(tmp_path.iterdir())
    pair = load_pair(parts[0], "none")
    assert pair.target.header.file_bytes == sum(part.stat().st_size for part in parts)
    with pytest.raises(ValueError) as caught:
        load_pair(parts[1], "none")
    assert str(caught.value) == f"{parts[1]}: found part 2 of 3, expected the first part, {parts[0].name}"


@pytest.mark.parametrize(("architecture", "found"), [("nomic-bert", "an encoder"), ("dflash", "a draft head")])
def test_other_gguf_models_are_named(architecture, found, tmp_path):
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", ["a", "b"], architecture=architecture)
    with pytest.raises(
        ValueError, match=rf"model.gguf: found {found} .*, expected a causal \(decoder-only\) language model"
    ):
        load_pair(path, "none", device="cpu", tokenizer=ROOT / "assets" / "demo" / "target")
