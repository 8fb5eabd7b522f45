"""ferret."""
