"""HTML pages, each one self-contained file: the page of an audit and the page of a study.

Text, rows and drawings are made here from the record alone; the templates in `templates/` only print them.
"""
