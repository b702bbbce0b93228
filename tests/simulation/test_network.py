"""Links behave as TCP: bytes arrive in order or not at all, whatever else happens."""

from __future__ import annotations

import pytest

from chaffinch.client.addresses import Address
from simulation.network import CALM, Link, Network, NetworkFaults
from simulation.world import World

ADDRESS = Address("broker", 9092)
ROUGH = NetworkFaults(cut_share=0.5, silent_share=0.3, slow_share=0.3)


class Side:
    """One end that only listens; on a broker's side it also takes the connection."""

    def __init__(self) -> None:
        self.data = b""
        self.ended: list[str] = []
        self.links: list[tuple[Link, int]] = []

    def arrived(self, data: bytes) -> None:
        assert not self.ended, "bytes after the end"
        self.data += data

    def finished(self, reason: str) -> None:
        self.closed(reason)

    def closed(self, reason: str) -> None:
        self.ended.append(reason)

    def accept(self, link: Link, node_id: int) -> None:
        self.links.append((link, node_id))
        link.to_broker.receiver = self


def connected(world: World, faults: NetworkFaults) -> tuple[Network, Link, Side, Side]:
    network, client, broker = Network(world, faults), Side(), Side()
    network.listen(ADDRESS, broker, 3)
    links: list[Link | None] = []
    network.connect("client", ADDRESS, links.append)
    world.run(lambda: bool(broker.links), limit_ms=1_000, waiting_for="the connection")
    (link,) = links
    assert link is not None
    assert broker.links == [(link, 3)]
    link.to_client.receiver = client
    return network, link, client, broker


def pass_time(world: World, ms: int = 20_000) -> None:
    done: list[bool] = []
    world.after(ms, lambda: done.append(True))
    world.run(lambda: bool(done), limit_ms=ms, waiting_for="time")


@pytest.mark.parametrize("seed", range(40))
def test_each_end_receives_a_prefix_of_the_sent_bytes(seed: int) -> None:
    """All of it, unless the link was cut or fell silent."""
    world = World(seed)
    _, link, client, broker = connected(world, ROUGH)
    sent = [world.rng.randbytes(world.rng.randrange(1, 5_000)) for _ in range(10)]
    for data in sent:
        link.to_broker.send(data)
        link.to_client.send(data[::-1])
        pass_time(world, world.rng.randrange(1, 50))
    pass_time(world)
    there, back = b"".join(sent), b"".join(data[::-1] for data in sent)
    assert there.startswith(broker.data)
    assert back.startswith(client.data)
    is_whole = (broker.data, client.data) == (there, back)
    assert is_whole == (not link.is_silent and not client.ended)
    assert len(client.ended) == len(broker.ended) <= 1, "both ends are notified once, or neither is"


def test_links_are_cut_silent_or_whole() -> None:
    world = World(1)
    seen = set()
    for _ in range(60):
        _, link, client, _ = connected(world, ROUGH)
        link.to_broker.send(bytes(50_000))
        link.to_client.send(bytes(50_000))
        pass_time(world)
        seen.add("silent" if link.is_silent else "cut" if client.ended else "whole")
    assert seen == {"silent", "cut", "whole"}


@pytest.mark.parametrize("closes", ["client", "broker"])
def test_bytes_sent_before_close_may_arrive(closes: str) -> None:
    seen = set()
    for seed in range(20):
        world = World(seed)
        _, link, client, broker = connected(world, CALM)
        other = broker if closes == "client" else client
        (link.to_broker if closes == "client" else link.to_client).send(b"last words")
        (link.close_by_client if closes == "client" else link.close_by_broker)("closed")
        (link.to_client if closes == "client" else link.to_broker).send(b"too late")
        pass_time(world)
        assert (client if closes == "client" else broker).data == b""
        assert other.ended == ["closed"]
        seen.add(other.data)
    assert seen == {b"", b"last words"}


def test_connect_without_listener_is_refused() -> None:
    world = World(1)
    network = Network(world, CALM)
    found: list[Link | None] = []
    network.connect("client", ADDRESS, found.append)
    pass_time(world)
    assert found == [None]


def test_unreachable_address_never_answers() -> None:
    world = World(1)
    network = Network(world, NetworkFaults(unreachable_share=1.0))
    network.connect("client", ADDRESS, lambda _link: pytest.fail("an answer"))
    pass_time(world)


def test_old_links_may_deliver_after_new_ones() -> None:
    """What an earlier connection still carries comes late: the reason for sequences and epochs."""
    for seed in range(20):
        world = World(seed)
        network, old, _, broker = connected(world, NetworkFaults(slow_share=0.5))
        new: list[Link | None] = []
        network.connect("client", ADDRESS, new.append)
        pass_time(world)
        assert new[0] is not None
        old.to_broker.send(b"old")
        new[0].to_broker.send(b"new")
        pass_time(world)
        if broker.data == b"newold":
            return
    pytest.fail("no seed turned them round")


def test_heal_ends_silent_links_and_faults() -> None:
    for seed in range(50):
        world = World(seed)
        network, link, client, broker = connected(world, NetworkFaults(silent_share=1.0))
        link.to_broker.send(bytes(50_000))
        link.to_client.send(bytes(50_000))
        network.heal()
        pass_time(world)
        assert client.ended
        assert broker.ended
        _, link, client, broker = connected(world, network.faults)
        link.to_broker.send(bytes(50_000))
        pass_time(world)
        assert broker.data == bytes(50_000)
