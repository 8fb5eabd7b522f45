"""What two or more mechanisms need."""
