"""Safe reading, atomic writing, prompts, answers, names of models. Knows bytes.

Each module imports, of this room, only modules named before it:

    dtypes, faults, file_kinds, file_model, gguf_header, safe_files, json_models, prompt_rows, number_tables,
    model_names, parquet_reading, prompt_files, response_logs, written_context
"""
