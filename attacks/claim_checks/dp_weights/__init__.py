"""dp_weights."""
