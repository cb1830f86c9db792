"""What one browser session works with."""
