"""Speculative decoding in vLLM, llama.cpp and SGLang servers: counters, reports, logs, plans, diagnosis, audit.

Within this package, each module imports only those listed before it:

    counts, flags, local_server, completions, logs, metrics, metric_printouts, metrics_address, records, bench_reports,
    chain_acceptance, fitted_acceptance, costs, plan, readings, request_spread, evidence, rules, two_samples, audit,
    speeds, diagnosis, words, options, rows, commands, audit_commands
"""

PROVIDES = {
    "commands": ["commands", "audit_commands"],
    "plan_remarks": ["flags:llama_server_sentence"],
    "vector_remarks": ["diagnosis:wired_wrong_by_vector"],
}
