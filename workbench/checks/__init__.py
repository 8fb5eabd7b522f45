"""Checks that need no training run of the user: accountants against certified bounds, published claims.

It loads the ledger of claims and the accountants, and runs their checks.
"""
