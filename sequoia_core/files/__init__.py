"""Safe reading, atomic writing, running within limits, prompt files, names of models. Knows bytes and containers.

Each module imports, of this room, only the modules named:

    bounded_process  -
    faults           -
    model_names      -
    prompt_columns   -
    safe_files       -
    parquet_prompts  bounded_process
    parquet_reading  prompt_columns, safe_files
    prompt_files     prompt_columns, safe_files, parquet_prompts
    response_logs    prompt_columns, safe_files, prompt_files
"""
