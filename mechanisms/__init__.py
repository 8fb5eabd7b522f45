"""The subjects under test: one file a mechanism."""
