"""Shuffled DPSGD: its study, its tables, figures and conclusions."""
