"""Evaluation: what responses are worth, of our policies and of anybody's files.

`califkit.evaluation.scores`, `califkit.evaluation.quality` and `califkit.evaluation.rubrics` are
stages; `califkit.evaluation.verification` and `califkit.evaluation.scoring_files` read response
files.
"""
