"""Many models of one architecture, trained at once by products of stacked matrices.

`network` has the stacked layers and the closed form of per-record norms, `together` the training loop.
"""
