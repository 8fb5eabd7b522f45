"""paczero."""
