"""Privacy curves by ball arithmetic: closed forms and exact counts with rigorous error bounds.

Each module encloses one family of mechanisms; `workbench.accounting.exact` chooses among them.
"""
