"""Figures as SVG text: axes and marks, charts, ROC curves, radar charts.

A figure is drawn for the page, whose style sheet colours it, and as a file that carries its own style. Series
differ by colour, dash and marker; captions say what the spread is.
"""
