"""The base models: their texts, recipes, and the builds that keep them in the user's cache.

Each is trained from scratch on one machine, to the same bytes, and registered as a model.
"""
