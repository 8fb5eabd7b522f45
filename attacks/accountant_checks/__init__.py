"""accountant_checks."""
