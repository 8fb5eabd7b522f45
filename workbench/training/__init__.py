"""Trains models: the loop, per-record gradients, canaries, models, zeroth order, permutations of weights.

It knows no game and no attack; mechanisms of the room are built on it.
"""
