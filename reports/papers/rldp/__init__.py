"""RLDP: its study, its tables, figures and conclusions."""
