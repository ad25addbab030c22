"""``python -m ringd``: the command ``ringd``."""

from ringd.cli.main import main

main()
