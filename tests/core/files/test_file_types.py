"""File types are recognised for error messages, and text is decoded by its byte order mark."""

import pytest

from sequoia_core.files.file_types import decode_text, describe

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.sample(40)
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (POINTER, "a Git LFS pointer, not the file itself"),
        (b'{"probs": [0.5]}', "JSON"),
        (b"0.5\n0.25\n", "text"),
        (b"\x1f\x8b\x08\0", "a gzip archive"),
        (b"83.42%\n 51.3 %\n7%", "percentages (divide them by 100)"),
        (b"80.1%, 70%, 60.5%\n", "percentages (divide them by 100)"),
        (b"about 50%\n", "text"),
        (b"x" * 9000 + b"\n=== Serving Benchmark Result ===\nDrafts: 4\n", "the report of `vllm bench serve`"),
        (b"= Serving Benchmark Result =\nBackend: sglang\n", "the report of SGLang's bench_serving"),
        (b'{"backend": "vllm", "request_throughput": 1.5}', "the report of `vllm bench serve` as JSON"),
        (b'{"accept_length": 2.91, "request_throughput": 1}', "the report of SGLang's bench_serving as JSON"),
        (b"[Counter(name='vllm:x', labels={}, value=1)]", "a printout of vLLM's LLM.get_metrics()"),
        (b"Vector(name='vllm:x', labels={}, values=[1])", "a printout of vLLM's LLM.get_metrics()"),
        (b'{"text": "x", "meta_info": {"id": "1"}}', "SGLang answers with meta_info"),
        (b'{"internal_states": []}', "SGLang's /get_server_info"),
        (b'{"timings": {"draft_rounds": 4, "draft_n": 8}}', "mlx-vlm answers, which count draft rounds"),
        (b"I Speculative metrics: Draft acceptance rate: .5", "a log from vLLM's first engine (V0)"),
        (b'\nvllm:x{server="http://a:8000"} 1\n', "metrics from a router (read the metrics of each engine instead)"),
        (
            b"# HELP dynamo_x y\ndynamo_frontend_x 1\n",
            "metrics from a router (read the metrics of each engine instead)",
        ),
        (b"# HELP lmdeploy:x y\n", "LMDeploy metrics"),
        (b"tgi_request_count 1\n", "Text Generation Inference metrics"),
        (b"# TYPE trtllm_x counter\n", "TensorRT-LLM metrics"),
        (
            b'{"data":{"resultType": "streams"}}',
            "a log wrapped in JSON (provide its lines as plain text, oldest first)",
        ),
        (b'[{"line": "accept len: 2"}]', "a log wrapped in JSON (provide its lines as plain text, oldest first)"),
        (
            b"subset,num_drafts,acceptance_at_pos_0\ncode,1000,0.6\n",
            "acceptance.csv from speculators (provide its per-position rates with --rates survival)",
        ),
        (b'nv_inference_count{model="m"} 1\n', "Triton metrics"),
    ],
)
def test_known_formats_are_named(data, named):
    assert describe(data) == named


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_select_the_encoding(encoding):
    assert decode_text("é 日本\n".encode(encoding), "text") == "é 日本\n"


@pytest.mark.parametrize("data", ["naïve\n".encode("cp1252"), "é".encode("utf-16")[:3]])
def test_other_encodings_are_refused(data):
    with pytest.raises(ValueError, match=r"found text that is not UTF-(8|16) \(byte 0x\w\w at \d\), expected JSON"):
        decode_text(data, "JSON")
