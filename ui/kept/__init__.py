"""Results kept on this machine between sessions."""
