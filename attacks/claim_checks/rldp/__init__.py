"""RLDP: its lemmas and tables, its ledger, its budgets by certified accounting, its controller, attacks."""
