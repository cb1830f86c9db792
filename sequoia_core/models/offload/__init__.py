"""Decoder layers that stay on disk or in host memory and stream through a ring of buffers in every pass."""
