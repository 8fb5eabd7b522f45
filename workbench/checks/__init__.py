"""Checks that train nothing for the user: published claims, and accountants against certified bounds."""
