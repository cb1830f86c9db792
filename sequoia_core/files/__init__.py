"""Safe reading, atomic writing, running within limits, prompts, answers, names of models. Knows bytes.

Each module imports, of this room, only the modules named:

    bounded_process     -
    dtypes              -
    faults              -
    gguf_header         -
    number_tables       -
    safe_files          -
    json_models         safe_files
    prompt_rows         safe_files
    model_names         gguf_header
    parquet_prompts     bounded_process
    parquet_reading     prompt_rows, safe_files
    prompt_files        prompt_rows, safe_files, parquet_prompts
    response_logs       prompt_rows, safe_files, prompt_files
    written_context     gguf_header, model_names, safe_files
"""
