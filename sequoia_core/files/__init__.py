"""Safe reading, atomic writing, running within limits, prompts, answers, names of models. Knows bytes.

Each module imports, of this room, only modules named before it:

    bounded_process, dtypes, faults, file_kinds, file_model, gguf_header, number_tables, safe_files, json_models,
    prompt_rows, model_names, parquet_reading, prompt_files, response_logs, written_context
"""
