"""Reading carefully, writing whole, prompt files, the names of models. Knows bytes and containers.

Each module imports, of this room, only the modules named:

    faults           -
    model_names      -
    parquet_pages    -
    safe_files       -
    prompt_files     parquet_pages, safe_files
"""
