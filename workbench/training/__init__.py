"""How models are trained: the loop, per-record signals, canaries, models, zeroth order.

It knows no game and no attack's scores.
"""
