"""Audit speculative decoding in other engines: transformers' assisted generation, llama.cpp's server and vLLM.

    python benchmarks/audit.py --engines transformers --bias 0.15
    python benchmarks/audit.py --engines llama.cpp --bias 0.06
    python benchmarks/audit.py --engines vllm --temperature 0 --vllm "vllm serve …"

transformers runs a random pair with a vocabulary of 16 tokens; llama.cpp runs the demo draft as the target, drafted by
the same model in 4 bits (requires the wheel of the extra `real`); vLLM runs the demo pair. Results are added to the
day's record. The last line maps each engine to its verdict and p-value.
"""

import http.server
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.common import ROOT, Options, read_record, require, write_record
from benchmarks.running_server import running_server
from benchmarks.server_check import server_command
from sequoia_extras.servers.audit import audit
from sequoia_extras.servers.local_server import ask
from sequoia_extras.servers.two_samples import samples_needed

VOCABULARY = 16
DRAFTED = 4
TEXTS = [json.loads(line)["text"] for line in (ROOT / "assets" / "prompts" / "prompts.jsonl").read_text().splitlines()]


def random_pair() -> list:
    """Return a target and a draft with random weights, peaked enough that they disagree."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    pair = []
    for seed, layers in ((1, 2), (2, 1)):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=64, eos_token_id=None, bos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            model.lm_head.weight.mul_(10)
        pair.append(model)
    draft = pair[1].generation_config
    draft.num_assistant_tokens, draft.num_assistant_tokens_schedule = DRAFTED, "constant"
    return pair


@contextmanager
def served(target, assistant) -> Iterator[str]:
    """Serve transformers' `generate`; a prompt is one token id."""
    import torch

    counted = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}

    def counting(name: str):
        def count(*_: object) -> None:
            counted[name] += 1

        return count

    def answer(body: dict) -> dict:
        passes = counted["drafts"]
        torch.manual_seed(body["seed"])
        ids = torch.tensor([[int(body["prompt"])]])
        asked = {"do_sample": True, "temperature": body["temperature"], "max_new_tokens": body["max_tokens"]}
        if assistant is None:
            rows = target.generate(ids, num_return_sequences=body["n"], top_k=0, **asked).tolist()
        # Assisted generation does not support batches.
        else:
            # Hooks are removed afterwards, so that plain requests to the same target are not counted.
            hooks = [
                model.register_forward_hook(counting(name))
                for model, name in ((target, "drafts"), (assistant, "draft_tokens"))
            ]
            rows = [
                target.generate(ids, assistant_model=assistant, top_k=0, **asked)[0].tolist() for _ in range(body["n"])
            ]
            for hook in hooks:
                hook.remove()
            # A pass of the target commits the accepted tokens and a bonus token.
            counted["accepted_tokens"] += sum(len(row) - 1 for row in rows) - (counted["drafts"] - passes)
        return {"choices": [{"token_ids": row[1:]} for row in rows]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = [f"transformers:spec_decode_num_{name}_total {value}" for name, value in counted.items()]
            self.reply("\n".join([*lines, ""]).encode())

        def do_POST(self) -> None:
            self.reply(json.dumps(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode())

        def reply(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextmanager
def transformers_sides(_: str) -> Iterator[tuple[str, str, list[str], str]]:
    target, draft = random_pair()
    with served(target, draft) as one, served(target, None) as other:
        yield one, other, ["3", "7"], f"transformers {version('transformers')}"


@contextmanager
def vllm_sides(program: str) -> Iterator[tuple[str, str, list[str], str]]:
    demo = ROOT / "assets" / "demo"
    commands = [server_command("vllm", program, str(demo / "target"), str(demo / "draft"), k) for k in (DRAFTED, 0)]
    with ExitStack() as kept:
        one, other = [kept.enter_context(running_server(command)) for command in commands]
        yield one, other, TEXTS, f"vLLM {json.loads(ask(one, '/version'))['version']}"


@contextmanager
def llama_sides(_: str) -> Iterator[tuple[str, str, list[str], str]]:
    require("xllamacpp", "gguf")
    from servers import as_gguf

    program = f"{sys.executable} {ROOT / 'scripts' / 'llama_server.py'} --ctx-size 8192 --parallel 64"
    demo = str(ROOT / "assets" / "demo" / "draft")
    with ExitStack() as kept:
        folders = [Path(kept.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        files = [as_gguf(demo, folder, dtype) for folder, dtype in zip(folders, ("float32", "q4_0"), strict=True)]
        commands = [server_command("llama.cpp", program, files[0], files[1], k) for k in (DRAFTED, 0)]
        one, other = [kept.enter_context(running_server(command)) for command in commands]
        yield one, other, TEXTS, f"xllamacpp {version('xllamacpp')}"


SIDES = {"transformers": transformers_sides, "llama.cpp": llama_sides, "vllm": vllm_sides}


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--engines", nargs="+", choices=SIDES, default=["transformers", "llama.cpp"])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--vllm", default="python -m vllm.entrypoints.openai.api_server", help="command to start vLLM")
    parser.add_argument("--bias", type=float, default=0.05, help="smallest total variation distance to detect")
    args = parser.read(engines=["transformers"], bias=0.9)
    if args.temperature:
        print(f"{samples_needed(args.bias):,} answers from each server", flush=True)
    for engine in args.engines:
        with SIDES[engine](args.vllm) as (one, other, prompts, named):
            found = audit(
                (one, other), prompts[: 4 if args.temperature else 32],
                sampling={"temperature": args.temperature, "top_p": 1.0}, length=64,
                variation=args.bias, progress=lambda share, words: print(f"{share:.0%} {words}", file=sys.stderr),
            )  # fmt: skip
        # Read the record only now, because another process may have added an engine.
        result = read_record("audit", args)
        result[f"{engine}, T = {args.temperature:g}"] = {"version": named, "drafted": DRAFTED} | found
        print(f"{engine} ({named}): {found['verdict']}", flush=True)
        write_record("audit", result, args)
    print(json.dumps({engine: {key: each[key] for key in ("verdict", "p_value")} for engine, each in result.items()}))


if __name__ == "__main__":
    main()
