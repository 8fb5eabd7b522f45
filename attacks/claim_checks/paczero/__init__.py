"""PACZero: theorems by certificate, figures by computation, settings, and runs of the mechanism."""
