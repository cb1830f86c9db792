"""Safe reading, atomic writing, running within limits, prompts, logs, servers' counts, names of models. Knows bytes.

Each module imports, of this room, only the modules named:

    bounded_process     -
    faults              -
    gguf_header         -
    local_server        -
    number_tables       -
    safe_files          -
    server_counts       -
    json_models         safe_files
    prompt_rows         safe_files
    model_names         gguf_header
    parquet_prompts     bounded_process
    parquet_reading     prompt_rows, safe_files
    prometheus_metrics  server_counts
    metrics_address     local_server
    prompt_files        prompt_rows, safe_files, parquet_prompts
    response_logs       prompt_rows, safe_files, prompt_files
    server_logs         server_counts
    server_records      safe_files, server_counts
    server_readings     number_tables, prometheus_metrics, safe_files, server_counts, server_logs, server_records
    written_context     gguf_header, model_names, safe_files
"""
