"""Models in GGUF files, run by llama.cpp.

Within this package, each module imports only those listed before it:

    bindings, header, session, model, tokenizer, source
"""

PROVIDES = {"model_sources": ["source:claim_gguf_file"]}
