"""Audit: is a checkpoint hacking its verifier? Two response files in, a page and a verdict out.

`califkit.audit.files` reads, `califkit.audit.compare` measures, `califkit.audit.verdict` concludes,
and `califkit.audit.page` writes.
"""
