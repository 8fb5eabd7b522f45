"""Shuffled DPSGD: its lemmas, Theorem 6 in closed form, pair by pair and at the same noise, and an attack."""
