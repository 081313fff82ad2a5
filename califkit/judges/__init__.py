"""Judges: models behind an OpenAI-compatible endpoint that grade responses.

`califkit.judges.judge.Judge` asks, `califkit.judges.prompts` holds the questions,
`califkit.judges.verdicts` what comes back, and `califkit.judges.rubrics` the rubric benchmarks.
"""
