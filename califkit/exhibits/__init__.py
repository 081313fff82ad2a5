"""Exhibits: the tables and figures of the paper, from runs, beside the paper's numbers.

One module a group of exhibits; `califkit.exhibits.plots` draws, `califkit.exhibits.paper` holds the
printed numbers, `califkit.exhibits.notebooks` runs the notebooks that show them.
"""
