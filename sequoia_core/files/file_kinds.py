"""Name what a file is by its first and last bytes, so that a refusal can say it, and decode text. Never guesses."""

import codecs
import re

HEAD_BYTES = 4096  # of a file, in which its form shows
_BOMS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig",
}  # fmt: skip
# Forms that people paste and that a reader may not take. The first match wins.
LLAMA_BENCH = "output of llama-bench"
_FORMS = (
    ("a Git LFS pointer, not the file itself", rb"version https://git-lfs\.github\.com/spec/"),
    ("a parquet file", rb"\APAR1"),
    ("a Zstandard archive", rb"\A\x28\xb5\x2f\xfd"),
    ("an xz archive", rb"\A\xfd7zXZ"),
    ("percentages (divide them by 100)", rb"\A(?:[^\S\n]*+\d{1,3}(?:[.,]\d+)?+\s*+%[\s,;]*+)+\Z"),
    ("the report of SGLang's bench_serving", rb"Serving Benchmark Result[^$]*?\n(?:Backend|Accept length):"),
    ("the report of SGLang's bench_serving as JSON", rb'"accept_length":'),
    ("the report of `vllm bench serve`", rb"Serving Benchmark Result"),
    ("the report of `vllm bench serve` as JSON", rb'"request_throughput":'),
    ("a print-out of vLLM's LLM.get_metrics()", rb"\b(?:Counter|Gauge|Vector|Histogram)\(name="),
    ("answers of SGLang with meta_info", rb'"meta_info":'),
    ("SGLang's /get_server_info", rb'"internal_states":'),
    ("answers of mlx-vlm, which count draft rounds", rb'"draft_rounds":'),
    ("a log of vLLM's first engine (V0)", rb"Speculative metrics: Draft acceptance"),
    (
        "metrics of a router (read those of each engine)",
        rb'(?m)^(?:(?:sgl_router|smg|dynamo)_|\w+:\w+\{[^}]*server="http)',
    ),
    ("metrics of LMDeploy", rb"(?m)^(?:# (?:HELP|TYPE) )?lmdeploy[:_]"),
    ("metrics of Text Generation Inference", rb"(?m)^(?:# (?:HELP|TYPE) )?tgi_"),
    ("metrics of TensorRT-LLM", rb"(?m)^(?:# (?:HELP|TYPE) )?(?:trtllm_|nv_trt_llm_)"),
    ("metrics of Triton", rb"(?m)^(?:# (?:HELP|TYPE) )?nv_inference_"),
    ("output of llama-batched-bench", rb"\|\s*PP\s*\|\s*TG\s*\|\s*B\s*\||\"is_pp_shared\""),
    ("output of llama-bench as CSV or SQL (print it with -o json)", rb"(?m)^(?:\w+,|CREATE TABLE )[^;{|]*\bavg_ns\b"),
    (LLAMA_BENCH, rb"\|\s*test\s*\|\s*t/s\s*\||\bavg_ns\b"),
    (
        "a log wrapped in JSON (give its lines as text, the oldest first)",
        rb'"resultType":\s*"streams"|"(?:line|message|msg)":\s*"[^"\n]*(?:SpecDecoding|draft acc|accept len|eval time)',
    ),
    ("acceptance.csv of speculators (give its rates by position with --rates survival)", rb"\bacceptance_at_pos_\d"),
    ("a bare list of numbers", rb"\A[\[\s]*[\d.eE+-]+(?:\s*,\s*[\d.eE+-]+)+[\]\s]*\Z"),
)


def kind_of(data: bytes) -> str:
    """Return the kind of a file by its first bytes."""
    head = data[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        return "an empty file"
    if data.startswith(b"PK"):
        return "an .npz archive" if b".npy" in data[:200] else "a zip archive"
    if data.startswith(b"\x93NUMPY"):
        return "a NumPy array"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data):
        return "a safetensors file"
    if data.startswith(b"\x1f\x8b"):
        return "a gzip archive"
    if data.startswith(b"\x80"):
        return "a bare pickle"
    if head.startswith(b"<"):
        return "HTML or XML"
    if head.startswith((b"{", b"[")):
        return "JSON"
    if data.startswith(tuple(_BOMS)):
        return "text"
    return "binary data" if b"\0" in head else "text"


def describe(data: bytes) -> str:
    """Return what a file is, for an error message: a known form by its name, else `kind_of`."""
    head = data[:HEAD_BYTES] + data[HEAD_BYTES:][-HEAD_BYTES:]  # a report stands at the end of what was printed
    return next((name for name, pattern in _FORMS if re.search(pattern, head)), kind_of(data))


def decode_text(data: bytes, expected: str) -> str:
    """Return UTF-8 text, or what a byte order mark declares.

    Raises:
        ValueError: for other encodings, which no byte tells apart for certain. `expected` is for the message.
    """
    encoding = next((name for mark, name in _BOMS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at {error.start:,}"
        raise ValueError(
            f"found {describe(data)} that is not {encoding.removesuffix('-sig').upper()} ({byte}), expected {expected} "
            "in UTF-8: save it again as UTF-8"
        ) from error
