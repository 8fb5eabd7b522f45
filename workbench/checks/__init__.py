"""Checks that train nothing for the user: published claims, and accountants against certified bounds.

The claims are rows of a ledger, each with a check that can answer either way.
"""
