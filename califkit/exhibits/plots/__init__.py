"""One function per figure: a table in, matplotlib Axes out. Nothing here computes a statistic.

`anchors`, `training` and `results` draw; `shared` holds what every picture shares. Our numbers are
filled, the paper's are hollow and say "paper", and what could not be measured says why.
"""
