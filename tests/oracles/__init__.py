"""Slow exact twins of what the workbench computes fast, and worlds whose truth is known."""
