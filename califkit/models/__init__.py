"""Models: a policy's weights, its responses, and the likelihood it gives to a response.

`califkit.models.resolve` turns a name into a folder, `califkit.models.engines` draws responses,
`califkit.models.reasoning` cuts reasoning from them, and
`califkit.models.likelihood.ReferenceScorer` computes l.
"""
