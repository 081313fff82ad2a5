"""Audit: is a checkpoint hacking its verifier? Two response files in, a page and a verdict out."""
