"""The demo target as a graph for ONNX Runtime, for passes.py: what a well-kept library reaches on this processor.

Needs `pip install onnx onnxruntime`. float32: its CPU kernels have no bfloat16 products. Attention is its
GroupQueryAttention with rotation, whose additive bias carries the tree's mask. Shapes: q = new tokens, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from timing import median_sec

MICROSOFT = "com.microsoft"


def build(model) -> bytes:
    """Return the graph of a Llama of transformers, weights inside."""
    from onnx import TensorProto, helper, numpy_helper

    config, base = model.config, model.model
    heads, key_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    nodes, weights = [], []

    def constant(name: str, value: torch.Tensor) -> str:
        weights.append(numpy_helper.from_array(value.detach().float().contiguous().numpy(), name))
        return name

    def add(kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes) -> str:
        nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def norm(name: str, x: str, weight: torch.Tensor) -> str:
        inputs = [x, constant(f"{name}.weight", weight)]
        return add("SimplifiedLayerNormalization", inputs, [name], epsilon=config.rms_norm_eps, axis=-1)

    def linear(name: str, x: str, *parts: torch.Tensor) -> str:
        return add("MatMul", [x, constant(f"{name}.weight", torch.cat(parts).T)], [name])

    every = torch.arange(config.max_position_embeddings)[None]
    cosines, sines = base.rotary_emb(torch.zeros(1), position_ids=every)
    tables = [constant("cosines", cosines[0, :, : size // 2]), constant("sines", sines[0, :, : size // 2])]
    hidden = add("Gather", [constant("embedding", base.embed_tokens.weight), "ids"], ["embedded"])
    inputs = ["ids", "positions", "bias", "last", "total"]
    caches, presents = [], []
    for i, layer in enumerate(base.layers):
        own, mlp = layer.self_attn, layer.mlp
        x = norm(f"norm{i}", hidden, layer.input_layernorm.weight)
        x = linear(f"project{i}", x, own.q_proj.weight, own.k_proj.weight, own.v_proj.weight)
        caches += [f"keys{i}", f"values{i}"]
        presents += [f"present_keys{i}", f"present_values{i}"]
        given = [x, "", "", *caches[-2:], "last", "total", *tables, "positions", "bias"]
        add(
            "GroupQueryAttention", given, [f"attended{i}", *presents[-2:]], MICROSOFT,
            num_heads=heads, kv_num_heads=key_heads, do_rotary=1, scale=size**-0.5,
        )  # fmt: skip
        x = linear(f"output{i}", f"attended{i}", own.o_proj.weight)
        hidden = add("Add", [hidden, x], [f"middle{i}"])
        x = norm(f"mlp_norm{i}", hidden, layer.post_attention_layernorm.weight)
        gate, up = linear(f"gate{i}", x, mlp.gate_proj.weight), linear(f"up{i}", x, mlp.up_proj.weight)
        gate = add("Mul", [gate, add("Sigmoid", [gate], [f"sigmoid{i}"])], [f"silu{i}"])
        x = linear(f"down{i}", add("Mul", [gate, up], [f"inner{i}"]), mlp.down_proj.weight)
        hidden = add("Add", [hidden, x], [f"after{i}"])
    linear("logits", norm("last_norm", hidden, base.norm.weight), model.lm_head.weight)

    integers = {"ids": 2, "positions": 2}
    shapes = [helper.make_tensor_value_info(n, TensorProto.INT64, [None] * integers[n]) for n in inputs[:2]]
    shapes.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [None] * 4))
    shapes += [helper.make_tensor_value_info(n, TensorProto.INT32, [1]) for n in inputs[3:]]
    cache = [1, key_heads, None, size]
    shapes += [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in caches]
    found = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None] * 3)]
    found += [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in presents]
    graph = helper.make_graph(nodes, "llama", shapes, found, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def passes_of(model, context: int, largest: int) -> Callable[[int], float]:
    """Return n -> seconds of a pass over n tokens after `context` others, the median of three."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(build(model), options, providers=["CPUExecutionProvider"])
    config = model.config
    shape = (1, config.num_key_value_heads, context + largest, config.head_dim)
    names = [f"{kind}{i}" for i in range(config.num_hidden_layers) for kind in ("keys", "values")]
    caches = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in names}

    def run(ids: np.ndarray, first: int) -> np.ndarray:
        count = len(ids)
        bias = np.zeros((1, 1, count, first + count), np.float32)
        bias[0, 0, :, first:] = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        binding = session.io_binding()
        binding.bind_cpu_input("ids", ids[None])
        binding.bind_cpu_input("positions", np.arange(first, first + count)[None])
        binding.bind_cpu_input("bias", bias)
        binding.bind_cpu_input("last", np.array([first + count - 1], np.int32))
        binding.bind_cpu_input("total", np.array([first + count], np.int32))
        for name, cache in caches.items():  # written in place
            binding.bind_ortvalue_input(name, cache)
            binding.bind_ortvalue_output(f"present_{name}", cache)
        binding.bind_output("logits", "cpu")
        session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()

    def timed(count: int) -> float:
        ids = np.arange(count)
        return median_sec(lambda: run(ids, context))

    prompt = torch.arange(context)
    found = run(prompt.numpy(), 0)[0]
    with torch.no_grad():
        wanted = model(prompt[None]).logits[0].numpy()
    if np.abs(found - wanted).max() > 1e-2:
        raise ValueError(f"ONNX Runtime: found logits {np.abs(found - wanted).max():.3g} away, expected the model's")
    return timed
