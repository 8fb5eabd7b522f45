"""A training run as it was, recorded while it trains, and judged by its file.

`record` hooks an optimizer, `callback` does so for the Trainer of transformers, `run_file` writes and reads
the file, `judging` composes what it says to an epsilon, `run` makes the report of `workbench audit --run`.

A watched run is not replayed: what one record adds to an update is not measured, but taken to be the clip
that the training code names.
"""
