"""Background jobs: the worker and its queue, controls, and the transfer of results into the session."""
