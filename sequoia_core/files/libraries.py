"""Third-party libraries that are not part of the base installation, and the pip extras that install them."""

INSTALL_EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "accelerate", "safetensors", "psutil"), "decode"),
    **dict.fromkeys(("tokenizers", "huggingface_hub"), "decode"),  # installed as dependencies of transformers
    **dict.fromkeys(("pandas", "pyarrow"), "parquet"),
    **dict.fromkeys(("streamlit", "plotly"), "app"),
    "distributed": "cluster",
    "xllamacpp": "gguf",
}


def missing_library_message(library: str) -> str:
    """Return the error message for a missing library, including the command that installs it."""
    return f'{library} is not installed: run pip install "sequoia-studio[{INSTALL_EXTRAS[library]}]"'


def missing_module_message(error: ModuleNotFoundError, needed_by: str) -> str:
    """Return the error message for a failed import; re-raise the error if no extra installs the module."""
    if error.name not in INSTALL_EXTRAS:
        raise error
    return f"{needed_by}: {missing_library_message(error.name)}"
