"""Targets whose layers stream: bit for bit as in memory, whatever happens to a pass, a read or the files."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import transformers

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.models.checkpoint import align_weights
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load, load_pair
from sequoia_core.models.model_sources import LoadRequest
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.models.tree_pass_check import check_tree_pass
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_extras.cpu_kernels.llama_x86 import CompiledLlama, llama_kernels
from sequoia_extras.offloading import layer_sources, tensor_files
from sequoia_extras.offloading import needs as offload_needs
from sequoia_extras.offloading.loading import StreamedFolder, streaming_needs
from sequoia_extras.offloading.streamed_llama import StreamedLlama
from sequoia_extras.offloading.streamed_modules import StreamedBackend
from tests.conftest import pair_of, tokens_of
from tests.core.models.test_checkpoint import REFUSED
from tests.core.models.test_finite_weights import MATRIX, NORM, OVERFLOWS, written
from tests.core.models.test_llama_torch import PROMPT, TREE, logits
from tests.core.test_families import FAMILIES, MIXTURES, build, save

IN_TILES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2, "vocab_size": 72}
COMPILED = {  # tied and separate heads, biases, norms of heads
    "Llama": {"tie_word_embeddings": False},
    "Llama tied": {"tie_word_embeddings": True},
    "Qwen2 tied": {"tie_word_embeddings": True},
    "Qwen3": {"tie_word_embeddings": False},
}
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("copies")
needs_compiler = pytest.mark.skipif(llama_kernels()[0] is None, reason="llama_x86.c cannot be built here")


def compiled_family(name: str, **settings) -> transformers.PreTrainedModel:
    key_heads = {"num_key_value_heads": 1}
    return build(name.split()[0], **IN_TILES | key_heads | COMPILED[name] | settings).to(torch.bfloat16)


def pairs(folder: str, dtype: str, resident_by):
    """Return a model in memory, run by the given backend, and the same one streamed."""
    weights = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    align_weights(weights)  # as `load_pair` does
    resident = HuggingFaceModel(weights, "resident", backend=resident_by(weights))
    streamed = load_pair(folder, folder, device="cpu", dtype=dtype, offload="disk").target
    resident.vocab_size = streamed.vocab_size
    return resident, streamed


@pytest.mark.sample(3, cover=False)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - MIXTURES))
def test_streamed_layers_give_the_same_logits(family, dtype, tmp_path):
    resident, streamed = pairs(save(build(family), tmp_path), dtype, TransformersBackend)
    for tree in (TREE, chain_tree(6)):
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    assert streamed.bytes_read > 0 and streamed.offload == "disk"
    streamed.close()


@needs_compiler
@pytest.mark.parametrize("family", COMPILED)
def test_compiled_passes_over_streamed_layers_give_the_same_logits(family, tmp_path):
    resident, streamed = pairs(save(compiled_family(family), tmp_path), "bfloat16", CompiledLlama)
    assert isinstance(streamed._backend, StreamedLlama)
    for tree in (TREE, chain_tree(6)):
        assert torch.equal(logits(resident, tree), logits(streamed, tree))
    # The check at load ran the model's own forward, whose weights must have been freed.
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


def test_steps_record_the_wait_for_weights(streamed, monkeypatch):
    read = os.preadv
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", lambda *arguments: time.sleep(0.2) or read(*arguments))
        steps = list(autoregressive(PROMPT, pair_of(streamed), max_new_tokens=8))
    assert max(step.read_wait_sec for step in steps) > 0.05  # a part of each read overlaps with computing
    steps = list(autoregressive(PROMPT, pair_of(streamed), max_new_tokens=8))
    assert all(step.read_wait_sec <= step.verify_sec for step in steps)


@needs_compiler
@pytest.mark.parametrize("backend", [TransformersBackend, CompiledLlama])
def test_shards_are_assembled_from_short_reads(backend, tmp_path, monkeypatch):
    """A read may return fewer bytes than requested, and partial blocks."""
    for module in (tensor_files, layer_sources):
        monkeypatch.setattr(module, "PIECE_BYTES", 8192)
    model = compiled_family("Llama") if backend is CompiledLlama else build("Llama", intermediate_size=512)
    folder = save(model.to(torch.float16), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: min(read(fd, [into[0][:8192]], at), 5000))
    resident, streamed = pairs(folder, "bfloat16", backend)
    assert torch.equal(logits(resident), logits(streamed))
    streamed.close()


FAULTS = {
    "shortened": (lambda path: os.truncate(path, path.stat().st_size // 2), "changed .*load the model again"),
    "vanished": (lambda path: path.unlink(), "no longer exists"),
}


@pytest.mark.parametrize(
    "fault, backend", [("shortened", StreamedBackend), ("vanished", StreamedBackend), ("shortened", StreamedLlama)]
)
def test_files_that_change_after_loading_are_refused(fault, backend, tmp_path, copies):
    if backend is StreamedLlama and llama_kernels()[0] is None:
        pytest.skip("llama_x86.c cannot be built here")
    model = compiled_family("Llama") if backend is StreamedLlama else build("Llama")
    folder = save(model, tmp_path)
    streamed = load_pair(folder, folder, device="cpu", dtype="bfloat16", offload="disk").target
    assert isinstance(streamed._backend, backend)
    logits(streamed)
    change, message = FAULTS[fault]
    change(next(copies.glob("*.layers")) if backend is StreamedLlama else tmp_path / "model.safetensors")
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            logits(streamed)
    streamed.close()
    assert not readers() and not open_files(str(tmp_path)) and not open_files(str(copies))


def test_the_model_recovers_from_a_failing_disk(streamed, monkeypatch):
    wanted = logits(streamed)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        with pytest.raises(ValueError, match="cannot read at byte .*Input/output"):
            for _ in range(2):  # layers read ahead are still used
                logits(streamed)
    assert torch.equal(wanted, logits(streamed))


def test_a_hanging_disk_is_an_error(streamed, monkeypatch):
    monkeypatch.setattr("sequoia_extras.offloading.layer_ring.STALL_SEC", 0.2)
    go_on = threading.Event()
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *arguments: go_on.wait(20) and read(*arguments))
    with pytest.raises(ValueError, match="disk did not respond"):
        for _ in range(2):
            logits(streamed)
    go_on.set()


def test_a_closed_model_is_refused(streamed):
    session = streamed.open(8)
    streamed.close()
    with pytest.raises(ValueError, match="closed"):
        session.forward(torch.tensor([1]), torch.tensor([0]), torch.zeros(1, 1), keep=1)
    with pytest.raises(ValueError, match="model was closed; load it again"):
        streamed.open(8)


@pytest.mark.parametrize(
    ("tier", "message"), [("tape", ", expected disk or host"), ("host", " with the device cpu, expected a CUDA device")]
)
def test_invalid_tiers_are_refused_before_reading(tier, message, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.folders.read_plan", lambda source: pytest.fail("files were read"))
    with pytest.raises(ValueError, match=f"offload: found {tier!r}{message}"):
        load_pair(device="cpu", offload=tier)


def test_weights_stored_twice_are_refused(tmp_path):
    model = shutil.copytree(ROOT / "assets" / "demo" / "draft", tmp_path / "model")
    change, message = REFUSED["an output layer beside the embedding that it is tied to"]
    change(model)
    with pytest.raises(ValueError, match=message):
        load_pair(model, "none", device="cpu", offload="disk")


@pytest.mark.parametrize(("value", "stored", "dtype", "found"), OVERFLOWS)
@pytest.mark.parametrize("key", [NORM, MATRIX])
def test_an_overflowing_cast_suggests_another_dtype(key, value, stored, dtype, found, tmp_path):
    files = StreamedFolder(written(tmp_path, key, value, stored).name)
    files.inspect()
    request = LoadRequest(PairSpec(offload="disk"), torch.device("cpu"), dtype)
    with pytest.raises(ValueError) as caught, closing(files.load(request)) as model:
        check_tree_pass(model)
    assert str(tmp_path) in str(caught.value) and found.format(key) in str(caught.value)


def test_needs_are_predicted_before_loading(tmp_path, monkeypatch):
    folder = save(build("Llama"), tmp_path)
    spec, alone = (PairSpec(folder, draft, "cpu", "float32", "disk") for draft in (folder, "none"))
    found = streaming_needs(spec)
    assert not readers() and not open_files(folder) and found.memory > 0
    assert streaming_needs(alone).draft == 0 < found.draft
    pair = load(spec)
    assert pair.target.needs == found
    pair.target.close()
    monkeypatch.setattr(offload_needs, "available_bytes", lambda: 2_000_000)
    for use in (streaming_needs, load):
        with pytest.raises(ValueError, match=r"found 2 MB of free memory, .* \d+ MB .*resident .*ring .*cache"):
            use(spec)
    assert not open_files(folder) and not readers()


def test_end_tokens_come_from_the_generation_settings(tmp_path):
    folder = save(build("Llama"), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    streamed = load_pair(folder, folder, device="cpu", offload="disk").target
    assert streamed.eos_ids == {5, 6}
    streamed.close()


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tree_may_be_larger_than_the_context(dtype, tmp_path):
    """1,024 nodes need slots, not positions: the context has 128."""
    folder = save(compiled_family("Llama").to(getattr(torch, dtype)), tmp_path)
    pair = load_pair(folder, folder, device="cpu", dtype=dtype, offload="disk").ignore_eos()
    tree = type(TREE)(k_ary_tree(4, 5).parents[:1024])
    steps = list(decode(PROMPT, pair, tree=tree, max_new_tokens=12))
    assert pair.target.max_context == 128 and steps[0].tree.size == 1024
    assert tokens_of(steps) == tokens_of(autoregressive(PROMPT, pair, max_new_tokens=12))
    pair.target.close()


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("layer reader")]


def open_files(folder: str) -> list[str]:
    """Return the open files of a folder."""
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(folder)]


@needs_compiler
@pytest.mark.slow
def test_fifty_loads_leak_nothing(tmp_path):
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
    assert most - memory < 20e6  # a leaked ring has 6 MB


@pytest.mark.slow
def test_readers_end_with_the_process(tmp_path):
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
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]" and "terminate" not in ended.stderr


@pytest.mark.slow
def test_a_profile_describes_streaming(tmp_path):
    folder = save(build("Llama"), tmp_path)
    pair = load_pair(folder, folder, device="cpu", dtype="float32", offload="disk")
    found = measure_profile(pair, sizes=[2, 8], context=8, repeats=2)
    layers = pair.target.model.config.num_hidden_layers
    assert found.meta["offload"] == "disk" and found.streaming.layers == layers and found.streaming.buffers == 2
    one_token = float(np.median(np.array(found.verify_samples[0]) + np.array(found.overhead_samples[0])))
    assert found.streaming.pass_sec == pytest.approx(one_token)
    pair.target.close()


@pytest.mark.gpu
def test_layers_from_host_memory_give_the_same_logits(tmp_path):
    """The layers are so large that a missing wait between copies and kernels would change the logits."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=8192,
        max_position_embeddings=512,
        eos_token_id=None,
        bos_token_id=None,
    )
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
