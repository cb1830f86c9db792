"""Counts of real servers on the demo pair, 16 greedy prompts of 128 tokens, in the servers' formats.

vLLM 0.32 and llama.cpp's server of autumn 2026. Only the relevant lines are included, and a few others.
"""

import json

from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.readings import ReadOptions, read_counts

STEPS = (  # accepted tokens of every step by request, vLLM, K = 8
    "002127812000038445115178030684303 10000000000018800000830001000000008521000000000008121000000000008 "
    "32100041051510041001500000410515100411510015000004105 8888888827461022343438 "
    "600141025430001052804651111471150354 8888888888674610223 1122125303016108722261256456456 "
    "11221000023100004054100000010142003211420032162003216 "
    "25400004102231011001001002001001300001200300010002010100001010100001010101 "
    "352201201020360083511740530200005031061111 888888888888888 7318814780818888888 8888888827461022343438 "
    "888888888888886 030631203101125211000440088288886 13310002021020020760630248103188888 "
).split()
DRAFTS_BY_K = {1: 1173, 2: 897, 3: 765, 4: 689, 6: 598}  # replayed; the servers drafted 1174, 897, 766, 689, 599
AFTER, BEFORE = (693, 2772, 1378, (469, 358, 295, 256), 2056, 17), (4, 16, 6, (3, 2, 1, 0), 8, 1)  # vLLM, K = 4
WIRED = (8000, 24_000, 295, (290, 5, 0), 8305, 10)
NGRAM = (352, 1406, 654, (212, 170, 144, 128), 2048, 16)
LLAMA_AFTER, LLAMA_BEFORE = (2732, 10825, 5379, (1834, 1397, 1152, 996), 8200), (4, 13, 3, (2, 1, 0, 0), 8)
LLAMA_PMIN = (239, 537, 494, (225, 124, 81, 64), 1024)


def vllm_text(drafts, draft_tokens, accepted, positions, tokens, requests, *, engine="0", model="demo") -> str:
    tags = f'engine="{engine}",model_name="{model}"'
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{{{tags}}} {drafts}.0",
        f"vllm:spec_decode_num_drafts_created{{{tags}}} 1.7953998554551876e+09",
        f"vllm:spec_decode_num_draft_tokens_total{{{tags}}} {draft_tokens}.0",
        f"vllm:spec_decode_num_accepted_tokens_total{{{tags}}} {accepted}.0",
        *(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{tags},position="{place}"}} {count}.0'
            for place, count in enumerate(positions)
        ),
        f'vllm:spec_decode_num_accepted_tokens_per_pos_created{{{tags},position="0"}} 1.795399855455294e+09',
        f"vllm:generation_tokens_total{{{tags}}} {tokens}.0",
        f'vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="{model}"}} 0.0',
        f'vllm:request_success_total{{engine="{engine}",finished_reason="length",model_name="{model}"}} {requests}.0',
        f'vllm:request_generation_tokens_bucket{{{tags},le="+Inf"}} 17.0',
        'python_info{implementation="CPython",version="3.11.7"} 1.0',
    ]
    return "\n".join(lines) + "\n"


def llama_text(drafts, draft_tokens, accepted, positions, tokens) -> str:
    lines = [
        "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens",
        f"llamacpp:tokens_predicted_total {tokens}",
        "llamacpp:tokens_predicted_seconds_total 15.9235",
        f"llamacpp:spec_decode_num_draft_tokens_total {draft_tokens}",
        f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}",
        f"llamacpp:spec_decode_num_drafts_total {drafts}",
        *(
            f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {count}'
            for place, count in enumerate(positions)
        ),
    ]
    return "\n".join(lines) + "\n"


SGLANG_TEXT = """# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_rate{dp_rank="0",model_name="glm",tp_rank="0"} 0.55
sglang:spec_accept_length{dp_rank="0",model_name="glm",tp_rank="0"} 2.65
"""


def step_record(steps: str, longest: int = 8) -> dict:
    """One request as vLLM reports it with --per-request-spec-decode-metrics detailed."""
    accepted = [int(digit) for digit in steps]
    return {
        "acceptance_histogram": [accepted.count(taken) for taken in range(longest + 1)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": longest * len(accepted),
        "num_spec_tokens": longest,
        "per_step_accepted": accepted,
        "per_step_drafted": [longest] * len(accepted),
    }


def step_records() -> bytes:
    return json.dumps([step_record(steps) for steps in STEPS]).encode()


def read(content, before: str | None = None, **options) -> ServerCounts:
    """Read a text, bytes or JSON values as the file `after`, less an earlier text."""
    data = content if isinstance(content, bytes | str) else json.dumps(content)
    earlier = None if before is None else before.encode()
    return read_counts(
        data.encode() if isinstance(data, str) else data, "after", earlier, options=ReadOptions(**options)
    )
