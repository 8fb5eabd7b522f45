"""The games that evidence is measured in, one file or folder each, and the protocol they share.

A game says which mechanisms it can be played with, plays its trials, and turns them into evidence.
"""
