"""The command line: one file a command, the terminal, JUnit, and the pytest plugin.

A command reads options, refuses what is wrong before any work, and calls the package that does the work.
"""
