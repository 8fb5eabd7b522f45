"""DP-Weights: its study, its tables, figures and conclusions."""
