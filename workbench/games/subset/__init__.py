"""subset."""
