"""Speculative decoding in other people's servers (vLLM, llama.cpp, SGLang): read, planned, judged, tried.

Each module imports, of this room, only the modules named:

    counts            -
    local_server      -
    same_law          -
    flags             counts
    logs              counts
    metrics           counts
    records           counts
    request_spread    counts
    metrics_address   local_server
    chain_acceptance  counts, records
    readings          counts, logs, metrics, records, chain_acceptance
    costs             chain_acceptance
    plan              chain_acceptance, costs
    rules             counts, request_spread
    diagnosis         counts, chain_acceptance, costs, plan, rules
    audit             local_server, readings, same_law
    check             counts, local_server, flags, readings, chain_acceptance, costs, plan
"""
