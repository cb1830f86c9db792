"""Safe reading and atomic writing of files, prompts, response logs, and model names.

Within this package, each module imports only those listed before it:

    dtypes, faults, file_types, file_model, safe_files, json_models, prompt_rows, number_tables, model_names,
    parquet_reading, libraries, prompt_files, response_logs, notices, extras
"""
