"""shuffled_dp_sgd."""
