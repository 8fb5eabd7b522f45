"""Checks of the privacy claims that papers print, one folder a paper.

Each check is a function `@register("claim_check", name)` that returns a `Finding`; an entry of the ledger
(`workbench.checks.ledger`) names it. Its parameters alter the claim, so that a test sees the verdict change.
"""
