"""What every other package stands on: errors, the registry, random streams, keys and output files.

It imports nothing of the workbench.
"""
