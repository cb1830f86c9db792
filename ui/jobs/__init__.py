"""Work in the background: the worker, its jobs, their panels, what their results mean for the session."""
