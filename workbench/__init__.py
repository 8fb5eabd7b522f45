"""The LM privacy workbench: audit a claimed privacy guarantee of a language model.

Importing this package imports no deep-learning framework.
"""

__version__ = "0.1.0"
