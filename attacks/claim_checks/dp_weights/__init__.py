"""DP-Weights: statements by proof and closed form, composition, the paper's own two checks, an attack."""
