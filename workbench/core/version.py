"""The version of the package, which every record of a result carries."""

__version__ = "0.1.0"
