"""The engine: links, groups, and one executor for every schedule. asyncio callbacks, no sockets.

``engine.Engine`` is what a daemon holds; ``operation.Operation`` is one collective in flight;
``landing`` is where its bytes come down; ``link.Link`` is one peer's connection.
"""
