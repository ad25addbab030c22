"""The daemon: a node of the group around an engine, and the Unix socket that trainers use.

``node.Node`` joins the group and keeps links (no Unix socket: the simulation runs it too);
``server`` and ``session`` serve the local client; ``arena`` maps its memory; ``watch`` sees it end.
"""
