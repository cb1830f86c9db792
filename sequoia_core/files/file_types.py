"""Recognise file types by their first and last bytes, to name them in error messages, and decode text."""

import codecs
import re

HEAD_BYTES = 4096
# UTF-32 comes first because its byte order mark starts with that of UTF-16.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
# Formats that users may paste into a reader that does not support them. The first match wins.
LLAMA_BENCH = "llama-bench output"
_KNOWN_FORMATS = (
    ("a Git LFS pointer, not the file itself", rb"version https://git-lfs\.github\.com/spec/"),
    ("a parquet file", rb"\APAR1"),
    ("a Zstandard archive", rb"\A\x28\xb5\x2f\xfd"),
    ("an xz archive", rb"\A\xfd7zXZ"),
    ("percentages (divide them by 100)", rb"\A(?:[^\S\n]*+\d{1,3}(?:[.,]\d+)?+\s*+%[\s,;]*+)+\Z"),
    ("the report of SGLang's bench_serving", rb"Serving Benchmark Result[^$]*?\n(?:Backend|Accept length):"),
    ("the report of SGLang's bench_serving as JSON", rb'"accept_length":'),
    ("the report of `vllm bench serve`", rb"Serving Benchmark Result"),
    ("the report of `vllm bench serve` as JSON", rb'"request_throughput":'),
    ("a printout of vLLM's LLM.get_metrics()", rb"\b(?:Counter|Gauge|Vector|Histogram)\(name="),
    ("SGLang answers with meta_info", rb'"meta_info":'),
    ("SGLang's /get_server_info", rb'"internal_states":'),
    ("mlx-vlm answers, which count draft rounds", rb'"draft_rounds":'),
    ("a log from vLLM's first engine (V0)", rb"Speculative metrics: Draft acceptance"),
    (
        "metrics from a router (read the metrics of each engine instead)",
        rb'(?m)^(?:(?:sgl_router|smg|dynamo)_|\w+:\w+\{[^}]*server="http)',
    ),
    ("LMDeploy metrics", rb"(?m)^(?:# (?:HELP|TYPE) )?lmdeploy[:_]"),
    ("Text Generation Inference metrics", rb"(?m)^(?:# (?:HELP|TYPE) )?tgi_"),
    ("TensorRT-LLM metrics", rb"(?m)^(?:# (?:HELP|TYPE) )?(?:trtllm_|nv_trt_llm_)"),
    ("Triton metrics", rb"(?m)^(?:# (?:HELP|TYPE) )?nv_inference_"),
    ("llama-batched-bench output", rb"\|\s*PP\s*\|\s*TG\s*\|\s*B\s*\||\"is_pp_shared\""),
    (
        "llama-bench output as CSV or SQL (print it with -o json)",
        rb"(?m)^(?:\w+,|CREATE TABLE )[^;{|]*\bavg_ns\b",
    ),
    (LLAMA_BENCH, rb"\|\s*test\s*\|\s*t/s\s*\||\bavg_ns\b"),
    (
        "a log wrapped in JSON (provide its lines as plain text, oldest first)",
        rb'"resultType":\s*"streams"|"(?:line|message|msg)":\s*"[^"\n]*(?:SpecDecoding|draft acc|accept len|eval time)',
    ),
    (
        "acceptance.csv from speculators (provide its per-position rates with --rates survival)",
        rb"\bacceptance_at_pos_\d",
    ),
    ("a bare list of numbers", rb"\A[\[\s]*[\d.eE+-]+(?:\s*,\s*[\d.eE+-]+)+[\]\s]*\Z"),
)


def file_type(data: bytes) -> str:
    """Return a file's general type, recognised by its first bytes, such as "a zip archive", "JSON" or "text"."""
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
    if data.startswith(tuple(_BYTE_ORDER_MARKS)):
        return "text"
    return "binary data" if b"\0" in head else "text"


def describe(data: bytes) -> str:
    """Describe a file for an error message: by its format if it is known, otherwise by its general type."""
    head = data[:HEAD_BYTES] + data[HEAD_BYTES:][-HEAD_BYTES:]  # Include the end, where programs print their reports.
    return next((name for name, pattern in _KNOWN_FORMATS if re.search(pattern, head)), file_type(data))


def decode_text(data: bytes, expected: str) -> str:
    """Decode text as UTF-8, or in the encoding given by its byte order mark.

    Raises:
        ValueError: if the text is not valid in that encoding; the message names what was `expected`. Other encodings
            are not guessed, because detection is unreliable.
    """
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at {error.start:,}"
        raise ValueError(
            f"found {describe(data)} that is not {encoding.removesuffix('-sig').upper()} ({byte}), expected {expected} "
            "in UTF-8: save it again as UTF-8"
        ) from error
