"""Training floor: models, per-record gradients, the loop that the gradient mechanisms share."""
