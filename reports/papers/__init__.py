"""A folder for each paper: its studies, and `report.toml` with its tables, claims and conditions.

Python there is for what a table cannot say.
"""
