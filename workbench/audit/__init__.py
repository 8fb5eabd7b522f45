"""From a claim and its settings to a report record.

Mechanisms of ours, a user's training function and a file of scores take the same path: play games, judge,
report.
"""
