"""Non-blocking sockets, and short error texts."""

from __future__ import annotations

import errno
import gc
import os
import selectors
import socket
import sys
from types import FrameType
from typing import Any

import pytest

from chaffinch.runtime import sockets
from chaffinch.runtime.sockets import SocketFailed, Waker

pytestmark = pytest.mark.long


def connect(port: int) -> socket.socket:
    (family, address), *_ = sockets.resolve("127.0.0.1", port)
    opened = sockets.open_connecting(family, address)
    with selectors.DefaultSelector() as selector:
        selector.register(opened, selectors.EVENT_WRITE)
        assert selector.select(10)
    return opened


def test_bytes_go_both_ways_and_nothing_blocks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = connect(listener.getsockname()[1])
        sockets.connect_outcome(opened)
        peer, _ = listener.accept()
        with opened, peer:
            buffer = memoryview(bytearray(10))
            assert sockets.receive_some(opened, buffer) is None
            assert sockets.send_some(opened, [memoryview(b"ab"), memoryview(b"c")]) == 3
            assert peer.recv(10) == b"abc"
            peer.sendall(b"xyz")
            with selectors.DefaultSelector() as selector:
                selector.register(opened, selectors.EVENT_READ)
                assert selector.select(10)
            assert sockets.receive_some(opened, buffer) == 3
            assert bytes(buffer[:3]) == b"xyz"
            while sockets.send_some(opened, [memoryview(bytes(1 << 20))]):
                pass  # Until the kernel takes no more: then 0, not an error.


def test_connect_without_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with connect(port) as opened, pytest.raises(SocketFailed, match="refused"):
        sockets.connect_outcome(opened)


def test_closed_peer_fails_receive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened = connect(listener.getsockname()[1])
        peer, _ = listener.accept()
        peer.close()
        with opened, selectors.DefaultSelector() as selector:
            selector.register(opened, selectors.EVENT_READ)
            assert selector.select(10)
            with pytest.raises(SocketFailed, match="closed by the broker"):
                sockets.receive_some(opened, memoryview(bytearray(10)))


@pytest.mark.parametrize("name", ["host.invalid", "two..dots", "a" * 64])
def test_unknown_name_fails_resolve(name: str) -> None:
    with pytest.raises(SocketFailed, match="name not known"):
        sockets.resolve(name, 1)


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ECONNREFUSED, "refused"), (errno.EPIPE, "closed by the broker"), (errno.EMFILE, "open files")]
)
def test_reason_of_errno_is_short(number: int, text: str) -> None:
    import os

    assert text in sockets.reason_of(OSError(number, os.strerror(number)))


def test_a_waker_wakes_until_it_is_drained() -> None:
    waker = Waker()
    with selectors.DefaultSelector() as selector:
        selector.register(waker.fileno(), selectors.EVENT_READ)
        assert not selector.select(0)
        waker.wake()
        waker.wake()
        assert selector.select(0)
        waker.drain()
        assert not selector.select(0)
        waker.wake()
        assert selector.select(0)
    waker.close()
    waker.wake()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="asks the system which descriptors are open")
def test_interrupted_waker_construction_leaves_no_descriptor_open() -> None:
    gc.collect()  # Sockets left by earlier tests are closed before the count, not during it.
    before, lines_run = len(os.listdir("/dev/fd")), 0
    while interrupted_after(lines_run):
        lines_run += 1
        gc.collect()
        assert len(os.listdir("/dev/fd")) == before, lines_run
    assert lines_run >= 3


def interrupted_after(lines: int) -> bool:
    """Make a waker, and have Ctrl-C come at a line of that; False when there are no more lines."""
    left = lines

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code is not Waker.__init__.__code__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        waker = Waker()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(outer)
    waker.close()
    waker.drain()
    return False


def test_full_or_closed_waker_ignores_wake() -> None:
    waker = Waker()
    while waker._writer.write(bytes(4096)) is not None:
        pass
    waker.wake()
    waker.drain()
    with selectors.DefaultSelector() as selector:
        selector.register(waker.fileno(), selectors.EVENT_READ)
        assert not selector.select(0)
    waker.close()
    waker._is_awake = False  # As another thread saw it just before.
    waker.wake()
