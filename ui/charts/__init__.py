"""Plotly figures of the app's results, without Streamlit; all numbers come from the core."""
