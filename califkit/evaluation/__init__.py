"""Evaluation: what responses are worth, of our policies and of anybody's files.

`califkit.evaluation.scores`, `califkit.evaluation.identification`,
`califkit.evaluation.quality` and `califkit.evaluation.rubrics` are stages. Anybody's files are read
in `califkit.evaluation.response_files`, verified in `califkit.evaluation.verdicts` and scored under
a reference in `califkit.evaluation.score_files`.
"""
