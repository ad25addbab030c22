"""What the ranks of the demo do: ``python -m ringd.demo.workers CONTROL`` under ``ringd run``.

A worker attaches to its daemon, connects to the Unix socket CONTROL, and takes one order a line.
Only the parts that need torch import it: a rank that just counts bytes is up in a moment.
"""
