"""rldp."""
