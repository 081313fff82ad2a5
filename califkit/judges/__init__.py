"""Judges: models behind an OpenAI-compatible endpoint that grade responses.

A `califkit.judges.prompts.Question` is what a judge is asked, and how its answer is read; a
`califkit.judges.verdicts.Verdict` is what comes back. `califkit.judges.judge.Judge` turns one into
the other, `califkit.judges.rubrics` asks the questions of the rubric benchmarks.
"""
