"""Grids of experiments: the study file, the jobs that it needs, their costs, and their results.

A study runs what its store lacks, and its report reads the store alone.
"""
