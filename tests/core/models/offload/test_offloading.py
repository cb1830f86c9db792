"""Targets whose layers stream: bit for bit as in memory, whatever happens to a pass, a read or the files."""

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import transformers

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.models.checkpoint import align_weights
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import TorchLlama
from sequoia_core.models.loading import load, load_pair, streaming_needs
from sequoia_core.models.offload import layer_sources, tensor_files
from sequoia_core.models.offload import needs as offload_needs
from sequoia_core.models.offload.streamed_llama import StreamedLlama
from sequoia_core.models.offload.streamed_modules import StreamedBackend
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.protocol import prefill
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.native.llama_x86 import CompiledLlama, compiled
from sequoia_core.studies.measure_profile import measure_profile
from tests.conftest import pair_of, tokens_of
from tests.core.test_families import FAMILIES, build, save

IN_TILES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2, "vocab_size": 72}
COMPILED = {  # what the compiled passes distinguish: a head of its own or tied, biases, norms of heads
    "Llama": {"tie_word_embeddings": False},
    "Llama tied": {"tie_word_embeddings": True},
    "Qwen2 tied": {"tie_word_embeddings": True},
    "Qwen3": {"tie_word_embeddings": False},
}
ROOT = Path(__file__).parents[4]
PROMPT = [2 + place % 60 for place in range(20)]
TREE = k_ary_tree(2, 3)
pytestmark = pytest.mark.usefixtures("copies")
needs_compiler = pytest.mark.skipif(compiled()[0] is None, reason="llama_x86.c cannot be built here")


def compiled_family(name: str, **settings) -> transformers.PreTrainedModel:
    key_heads = {"num_key_value_heads": 1}
    return build(name.split()[0], **IN_TILES | key_heads | COMPILED[name] | settings).to(torch.bfloat16)


def pairs(folder: str, dtype: str, resident_by):
    """Return a model in memory, run by a given kind of passes, and the same one streamed."""
    weights = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    align_weights(weights)  # as `load_pair` does
    resident = HuggingFaceModel(weights, "resident", backend=resident_by(weights))
    streamed = load_pair(folder, folder, device="cpu", dtype=dtype, offload="disk").target
    resident.vocab_size = streamed.vocab_size
    return resident, streamed


def logits(model, tree=TREE) -> torch.Tensor:
    """Return what a tree after a prompt gets, another child of its root, and a token after an accepted path."""
    session = model.open(len(PROMPT) + tree.size + 8)
    prefill(session, PROMPT)
    start, ids = len(PROMPT), torch.arange(tree.size) % 60
    tree_mask = torch.zeros(tree.size, tree.size).masked_fill_(~torch.from_numpy(tree.ancestor_mask), -torch.inf)
    found = [session.forward(ids, start + torch.from_numpy(tree.depths).long(), tree_mask, keep=tree.size).clone()]
    alone = torch.full((1, tree.size + 1), -torch.inf)
    alone[0, [0, -1]] = 0.0
    found.append(session.forward(ids[:1], torch.tensor([start + 1]), alone, keep=1).clone())
    path = [0, int(tree.children(0)[-1])]
    session.commit(start, path)
    found.append(session.forward(ids[:1], torch.tensor([session.length]), torch.zeros(1, 1), keep=1).clone())
    return torch.cat(found)


@pytest.mark.sample(3, cover=False)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_layers_give_what_resident_ones_give(family, dtype, tmp_path):
    resident, streamed = pairs(save(build(family), tmp_path), dtype, TransformersBackend)
    for tree in (TREE, chain_tree(6)):
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    assert streamed.bytes_read > 0 and streamed.offload == "disk"
    streamed.close()


@needs_compiler
@pytest.mark.parametrize("family", COMPILED)
def test_compiled_passes_over_streamed_layers_give_what_resident_ones_give(family, tmp_path):
    resident, streamed = pairs(save(compiled_family(family), tmp_path), "bfloat16", CompiledLlama)
    assert isinstance(streamed._backend, StreamedLlama)
    for tree in (TREE, chain_tree(6)):
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    # the model's own forward, run by the check at load, holds nothing any more
    assert streamed._streamed.ring is None
    assert all(parameter.is_meta for parameter in streamed.model.parameters() if parameter.ndim > 1)
    streamed.close()


@pytest.fixture
def streamed(tmp_path):
    """A Llama in float32 whose layers stream through its own modules."""
    folder = save(build("Llama"), tmp_path)
    loaded = load_pair(folder, "none", device="cpu", dtype="float32", offload="disk").target
    yield loaded
    loaded.close()


def test_a_step_says_how_long_it_waited_for_weights(streamed, monkeypatch):
    read = os.preadv
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", lambda *arguments: time.sleep(0.2) or read(*arguments))
        steps = list(autoregressive(PROMPT, pair_of(streamed), max_new_tokens=8))
    assert max(step.read_wait_sec for step in steps) > 0.05  # computing beside a read takes a part of it away
    steps = list(autoregressive(PROMPT, pair_of(streamed), max_new_tokens=8))
    assert all(step.read_wait_sec <= step.verify_sec for step in steps)


@needs_compiler
@pytest.mark.parametrize("kind", [TransformersBackend, CompiledLlama])
def test_shards_of_another_format_read_piece_by_piece_are_put_together(kind, tmp_path, monkeypatch):
    """A disk may return fewer bytes than were asked for, also no whole blocks."""
    for module in (tensor_files, layer_sources):
        monkeypatch.setattr(module, "PIECE", 8192)
    model = compiled_family("Llama") if kind is CompiledLlama else build("Llama", intermediate_size=512)
    folder = save(model.to(torch.float16), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: min(read(fd, [into[0][:8192]], at), 5000))
    resident, streamed = pairs(folder, "bfloat16", kind)
    assert torch.equal(logits(resident), logits(streamed))
    streamed.close()


FAULTS = {
    "shortened": (lambda path: os.truncate(path, path.stat().st_size // 2), "changed .*load the model again"),
    "vanished": (lambda path: path.unlink(), "no such file any more"),
}


@pytest.mark.parametrize(
    "fault, kind", [("shortened", StreamedBackend), ("vanished", StreamedBackend), ("shortened", StreamedLlama)]
)
def test_files_that_change_underneath_are_refused(fault, kind, tmp_path, copies):
    if kind is StreamedLlama and compiled()[0] is None:
        pytest.skip("llama_x86.c cannot be built here")
    model = compiled_family("Llama") if kind is StreamedLlama else build("Llama")
    folder = save(model, tmp_path)
    streamed = load_pair(folder, folder, device="cpu", dtype="bfloat16", offload="disk").target
    assert isinstance(streamed._backend, kind)
    logits(streamed)
    change, message = FAULTS[fault]
    change(next(copies.glob("*.layers")) if kind is StreamedLlama else tmp_path / "model.safetensors")
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            logits(streamed)
    streamed.close()
    assert not readers() and not held(str(tmp_path)) and not held(str(copies))


def test_a_disk_that_fails_is_an_error_and_once_it_works_again_so_does_the_model(streamed, monkeypatch):
    wanted = logits(streamed)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        with pytest.raises(ValueError, match="does not deliver byte .*Input/output"):
            for _ in range(2):  # what was read ahead still counts
                logits(streamed)
    assert torch.equal(wanted, logits(streamed))


def test_a_disk_that_hangs_is_given_up(streamed, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.offload.layer_ring.STALL_SEC", 0.2)
    go_on, read = threading.Event(), os.preadv
    monkeypatch.setattr(os, "preadv", lambda *arguments: go_on.wait(20) and read(*arguments))
    with pytest.raises(ValueError, match="delivered nothing"):
        for _ in range(2):
            logits(streamed)
    go_on.set()


def test_a_closed_model_says_so(streamed):
    session = streamed.open(8)
    streamed.close()
    with pytest.raises(ValueError, match="closed"):
        session.forward(torch.tensor([1]), torch.tensor([0]), torch.zeros(1, 1), keep=1)
    with pytest.raises(ValueError, match="closed, expected one that is loaded"):
        streamed.open(8)


def test_what_a_pair_will_take_is_said_before_it_is_loaded(tmp_path, monkeypatch):
    folder = save(build("Llama"), tmp_path)
    spec, alone = (PairSpec(folder, draft, "cpu", "float32", "disk") for draft in (folder, "none"))
    found = streaming_needs(spec)
    assert not readers() and not held(folder) and found.memory > 0
    assert streaming_needs(alone).beside == 0 < found.beside
    pair = load(spec)
    assert pair.target.needs == found
    pair.target.close()
    monkeypatch.setattr(offload_needs, "available_bytes", lambda: 2_000_000)
    for use in (streaming_needs, load):
        with pytest.raises(ValueError, match=r"found 2 MB of memory free, expected \d+ MB .*resident .*ring .*cache"):
            use(spec)
    assert not held(folder) and not readers()


def test_end_tokens_come_from_the_generation_settings(tmp_path):
    folder = save(build("Llama"), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    streamed = load_pair(folder, folder, device="cpu", offload="disk").target
    assert streamed.eos_ids == {5, 6}
    streamed.close()


@needs_compiler
@pytest.mark.parametrize(
    "dtype, kinds", [("float32", (TransformersBackend, TorchLlama)), ("bfloat16", (CompiledLlama,))]
)
def test_a_tree_may_be_larger_than_the_context(dtype, kinds, tmp_path):
    """1,024 nodes need slots, not positions: with a context of 128, in memory and streamed."""
    folder = save(compiled_family("Llama").to(getattr(torch, dtype)), tmp_path)
    tree = type(TREE)(k_ary_tree(4, 5).parents[:1024])
    models = [pairs(folder, dtype, kind)[0] for kind in kinds]
    models.append(load_pair(folder, folder, device="cpu", dtype=dtype, offload="disk").target)
    for model in models:
        assert model.max_context == 128
        found = list(decode(PROMPT, pair_of(model, models[0]), tree=tree, max_new_tokens=12))
        plain = autoregressive(PROMPT, pair_of(model), max_new_tokens=12)
        assert tokens_of(found) == tokens_of(plain) and found[0].tree.size == 1024
    models[-1].close()


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("layer reader")]


def held(folder: str) -> list[str]:
    """Return the open files of a folder."""
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(folder)]


@needs_compiler
@pytest.mark.slow
def test_fifty_loads_leave_no_thread_descriptor_or_memory(tmp_path):
    folder = save(compiled_family("Llama"), tmp_path)

    def load_and_run(times: int) -> tuple[int, int]:
        """Return how many files are open afterwards, and the memory in use."""
        for _ in range(times):
            target = load_pair(folder, folder, device="cpu", dtype="bfloat16", offload="disk").target
            logits(target)
        del target
        gc.collect()
        for thread in readers():
            thread.join(10)
        process = psutil.Process()
        return process.num_fds(), process.memory_info().rss

    files, memory = load_and_run(5)
    found, most = load_and_run(50)
    assert not readers() and found == files
    assert most - memory < 20e6  # one leaked ring of large pages would be 6 MB, twelve 72


@pytest.mark.slow
def test_a_process_that_ends_without_closing_ends_its_readers_first(tmp_path):
    folder = save(build("Llama"), tmp_path)
    program = (
        "import atexit, os, sys, threading, time\n"
        "readers = lambda: [one.name for one in threading.enumerate() if one.name.startswith('layer reader')]\n"
        "atexit.register(lambda: print(readers()))  # runs after the model's\n"
        "from sequoia_core import autoregressive, load_pair\n"
        "pair = load_pair(sys.argv[1], sys.argv[1], device='cpu', dtype='float32', offload='disk')\n"
        "list(autoregressive([1, 2, 3], pair.ignore_eos(), max_new_tokens=2))\n"
        "assert readers()\n"
        "read = os.preadv\n"
        "os.preadv = lambda *arguments: time.sleep(0.5) or read(*arguments)\n"
        "list(autoregressive([1, 2, 3], pair.ignore_eos(), max_new_tokens=1))\n"
    )  # the readers are in the middle of a slow read
    ended = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]" and "terminate" not in ended.stderr


@pytest.mark.slow
def test_a_profile_of_a_streamed_target_says_how_its_layers_arrive(tmp_path):
    folder = save(build("Llama"), tmp_path)
    pair = load_pair(folder, folder, device="cpu", dtype="float32", offload="disk")
    found = measure_profile(pair, sizes=[2, 8], context=8, repeats=2)
    layers = pair.target.model.config.num_hidden_layers
    assert found.meta["offload"] == "disk" and found.streaming.layers == layers and found.streaming.buffers == 2
    one_token = float(np.median(np.array(found.verify_samples[0]) + np.array(found.overhead_samples[0])))
    assert found.streaming.pass_sec == pytest.approx(one_token)
    pair.target.close()


@pytest.mark.gpu
def test_layers_from_the_hosts_memory_are_those_of_the_file(tmp_path):
    """Layers large enough that a pass that did not wait for one, or a copy for a pass, would show."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=1024, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=8,
        intermediate_size=8192, max_position_embeddings=512, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    folder = save(transformers.LlamaForCausalLM(config), tmp_path)
    resident, streamed = (
        load_pair(folder, "none", device="cuda", dtype="float32", offload=tier).target for tier in (None, "host")
    )
    ids = torch.randint(256, (300,), generator=torch.Generator().manual_seed(0))
    for count in (300, 1, 64, 1):
        wanted = resident.plain_logits(ids[:count])
        torch.testing.assert_close(streamed.plain_logits(ids[:count]), wanted, atol=1e-3, rtol=1e-3)
    with pytest.raises(KeyboardInterrupt):
        hook = streamed.model.model.layers[3].register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        streamed.plain_logits(ids)
    hook.remove()
    torch.testing.assert_close(streamed.plain_logits(ids), resident.plain_logits(ids), atol=1e-3, rtol=1e-3)
    step = next(autoregressive(ids[:9].tolist(), pair_of(streamed), max_new_tokens=2))
    assert step.read_wait_sec > 0.0
    streamed.close()
