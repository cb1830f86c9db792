"""Streamlit-side helpers: what the pages share; no maths of its own."""
