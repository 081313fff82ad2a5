"""Anchors: the bounds l0 and l1 of every prompt, and what one may think of them.

`califkit.anchors.bounds.measure_bounds` measures those of a data set of one's own;
`califkit.anchors.measure` those of a profile, in resumable shards; `califkit.anchors.region` says
where a likelihood lies between them; `califkit.anchors.report` whether they are sound.
"""
