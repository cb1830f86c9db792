"""Speculative decoding in other people's servers (vLLM, llama.cpp, SGLang): read, planned, judged, tried.

Each module imports, of this room, only modules named before it:

    counts, local_server, same_law, flags, logs, metrics, records, request_spread, metrics_address,
    chain_acceptance, readings, costs, plan, evidence, rules, diagnosis, audit, check
"""
