"""This package against an anchor, in one run on one machine: `python -m benchmarks [NAME...] [--json] [--scale F]`.

Only ratios travel from machine to machine. So each benchmark runs this package and a well-known piece of software by
turns on the same work. It states the ratio that must be reached.
"""
