"""The games that evidence is measured in, one file or folder each, and the protocol they share.

Audits and studies play them by that protocol alone.
"""
