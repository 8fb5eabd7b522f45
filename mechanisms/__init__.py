"""The subjects under test: one file or folder each, and `accountants`."""
