"""Runs: typed settings, the stages they describe, the folders that hold results, and jobs.

`califkit.runs.params.load_params` reads a profile; its ``settings`` make the stages
(`califkit.runs.stages`), which say what they need and what computes them;
`califkit.runs.folders.open_run` finds a stage's folder; and `califkit.runs.dispatch` computes what
is missing, here or on a cluster.
"""
