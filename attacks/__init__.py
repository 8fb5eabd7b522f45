"""What runs against the subjects: one file an attack."""
