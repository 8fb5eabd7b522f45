"""consecutive."""
