"""Data: rows of any source, checked and cut into request x and constraints c.

`califkit.data.load` reads data sets, `califkit.data.rows` says what a row may look like,
`califkit.data.split` finds where the request ends, `califkit.data.composer` writes training
prompts of our own, and `califkit.data.prompts` picks those that a profile trains on.
"""
