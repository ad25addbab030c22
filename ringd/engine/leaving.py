"""Links that no group needs any more: closed in agreement, so that nothing is lost with them.

Whoever needs a link no more says IDLE, and sends nothing on it until the peer answers: with a
goodbye, or with BUSY if the link is needed there. Who wants the link meanwhile waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.group import Group
    from ringd.engine.link import Link


class Leaving:
    """The links of one rank that wait for the answer.

    Attributes:
        over: the node has ended: no link begins.
    """

    def __init__(self, engine: Engine) -> None:
        self.over = False
        self._engine = engine
        self._links: dict[int, Link] = {}
        self._wanted: set[int] = set()

    def group_freed(self, group: Group) -> None:
        """A group is gone: say which of its links nobody needs now."""
        for rank in group.ranks:
            link = self._engine.links.get(rank)
            if link is None:
                continue
            link.forget(group.stream)
            if not self._needed(link):
                del self._engine.links[rank]
                self._links[rank] = link
                link.send_note(Kind.IDLE, 0, [])

    def _needed(self, link: Link) -> bool:
        engine = self._engine
        ring = engine.world.ranks
        if link.peer in ring and engine.rank in ring:
            apart = (ring.index(link.peer) - ring.index(engine.rank)) % len(ring)
            if apart in (1, len(ring) - 1):
                return True
        if link.users or engine.mail.uses(link):
            return True
        return any(link.peer in op.flows for op in engine.live)

    def on_idle(self, link: Link) -> None:
        """The peer needs the link no more."""
        peer = link.peer
        if self._links.get(peer) is link:
            del self._links[peer]
        elif self._needed(link):
            link.send_note(Kind.BUSY, 0, [])
            return
        elif self._engine.links.get(peer) is link:
            del self._engine.links[peer]
        link.send_note(Kind.GOODBYE, 0, [self._engine.world.epoch])
        link.connection.close()
        self._ask_again(peer)

    def on_busy(self, link: Link) -> None:
        """The peer needs the link: it stands."""
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._wanted.discard(link.peer)
            self._engine.link_up(link)

    def link_to(self, peer: int) -> Link | None:
        """Where a peer is answered: also on a link that waits for its word, as one that still
        offers something there needs the link, and will say BUSY."""
        return self._engine.links.get(peer) or self._links.get(peer)

    def holds_back(self, peer: int) -> bool:
        """Whether a new link to ``peer`` has to wait until the old one is settled."""
        if peer not in self._links:
            return False
        self._wanted.add(peer)
        return True

    def closed(self, link: Link) -> bool:
        """A connection ended; whether it was one of these, which nobody misses."""
        if self._links.get(link.peer) is not link:
            return False
        del self._links[link.peer]
        self._ask_again(link.peer)
        return True

    def _ask_again(self, peer: int) -> None:
        if peer in self._wanted:
            self._wanted.discard(peer)
            self._engine.want_link(peer)

    def close(self) -> None:
        """The node ends."""
        self.over = True
        for link in self._links.values():
            link.connection.close()
