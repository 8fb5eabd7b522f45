"""What two or more accountants need."""
