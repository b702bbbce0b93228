"""Effect runner: carries out the effects of the broker's core (responses, closed connections, log lines) and supplies it with the time.

With `flush.policy=always`, all requests of one event loop turn are synced together before any of their responses is sent.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from chaffinch.broker.connections import TURN_SECONDS_MAX, Peer
from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.events import (
    CloseConnection,
    CompleteWithoutResponse,
    Effect,
    LogLine,
    RequestFailed,
    Respond,
    ThrottleConnection,
    TimePassed,
)
from chaffinch.runtime.clock import Clock, ShiftedClock
from chaffinch.storage.file_system import StorageError

LOG = logging.getLogger("chaffinch.broker")

SYNC_FAILED: Final = (
    "%s. Data written since the last sync may be lost, so from now on no request is answered: connections are closed, and clients retry. "
    "Check the disk, then restart the broker; it continues with the contents of its logs"
)
SYNC_SUCCEEDED: Final = "syncs succeed again: requests are answered"
"""Logged after a failure that no single file caused. A file whose own sync failed refuses every later sync, see `storage/files.py`."""

TURNS_TO_ANSWER: Final = 256
"""Event loop turns in which an orderly stop sends the due responses: enough for 65,536 of them."""


class EffectRunner:
    """Runs the effects of one core.

    `peers`: the open connections by id. `syncs`: effects must go through `run_after_sync`. `unsent`: effects that wait for the sync at the
    end of this event loop turn. `is_ending`: no new work is started.
    """

    def __init__(self, core: BrokerCore, clock: Clock, start_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        """`clock`, `start_ms`: see `CoreTime`."""
        self.peers: dict[int, Peer] = {}
        self.time = CoreTime(core, clock, start_ms, loop, self._time_passed)
        self.syncs = core.state.settings["flush.policy"] == "always"
        self.is_ending = False
        self.unsent: list[Effect] = []
        self._core = core
        self._loop = loop
        self._send_at_s = 0.0
        self._sync_failed = False  # Whether the last sync failed.
        self._failures: set[str] = set()  # Source locations of failures that were logged with a traceback.
        core.lends_files = not self.syncs

    def run(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, LogLine):
                LOG.log(logging.INFO if effect.is_routine else logging.WARNING, "%s", effect.text)
                continue
            peer = self.peers.get(effect.connection_id)
            if peer is None:
                continue
            if isinstance(effect, Respond):
                self._respond(peer, effect)
            elif isinstance(effect, CompleteWithoutResponse):
                peer.skip(effect.request)
            elif isinstance(effect, ThrottleConnection):
                peer.slow_down(effect.bytes_per_second, answers=effect.answers, requests=effect.requests)
            elif isinstance(effect, RequestFailed):
                self.failed(peer, effect.error)
            else:
                self._close_peer(peer, effect.reason)

    def _respond(self, peer: Peer, effect: Respond) -> None:
        try:
            peer.respond(effect.request, effect.message)
        except Exception as error:  # A response that cannot be sent closes its own connection, not the one that caused it.
            self.send_failed(peer, error)

    def _close_peer(self, peer: Peer, reason: str) -> None:
        if reason:
            self.log_rate_limited(peer, "closed connections", f"connection from {peer.address} closed: {reason}")
        peer.close()

    def failed(self, peer: Peer, error: Exception) -> None:
        """An internal error: close this connection. The first error from each source location is logged with its traceback."""
        line = f"connection from {peer.address} closed: the broker failed on its request"
        location = repr(traceback.extract_tb(error.__traceback__)[-1:])
        if location in self._failures:
            self.log_rate_limited(peer, "failures of the broker", f"{line}, as before: {error!r}")
        else:
            self._failures.add(location)
            LOG.error(line, exc_info=error)
        peer.abort()

    def send_failed(self, peer: Peer, error: Exception) -> None:
        """Close a connection whose response cannot be completed: part of it may already be sent, so no other response can follow."""
        if not isinstance(error, StorageError | OSError):
            self.failed(peer, error)
            return
        if isinstance(error, StorageError):
            text = (
                f"connection from {peer.address} closed in the middle of a response: {error}; "
                "until the next start records are read before they are sent"
            )
            self.log_rate_limited(peer, "unreadable records", text)
            # Then one unreadable partition does not affect the other partitions of a response.
            self._core.lends_files = False
        peer.abort()

    # After a sync ---------------------------------------------------------------------------------------------------------------------

    def run_after_sync(self, effects: Sequence[Effect]) -> None:
        """With flush.policy=always: sync once for all requests of this event loop turn, then run the effects."""
        if effects and not self.unsent:
            self._loop.call_soon(self._sync_turn)
            self._send_at_s = perf_counter() + TURN_SECONDS_MAX
        self.unsent += effects
        for effect in effects:
            if isinstance(effect, CloseConnection) and effect.connection_id in self.peers:
                self.peers[effect.connection_id].stop_taking_requests()
        if self.unsent and perf_counter() > self._send_at_s:  # Do not collect too many large responses.
            self._sync_turn()

    def run_now(self, effects: Sequence[Effect]) -> None:
        """Run these effects now, after those that wait for the sync."""
        self.unsent += effects
        self._sync_turn()
        self.time.arm()

    def _sync_turn(self) -> None:
        if not self.is_ending:
            self.sync_and_run()

    def sync_and_run(self) -> None:
        effects, self.unsent = self.unsent, []
        try:
            self._core.sync()
        except StorageError as error:
            # The state on disk is unknown. Send no response rather than a wrong one; clients retry.
            if not self._sync_failed:
                LOG.error(SYNC_FAILED, error)
            self._sync_failed = True
            for connection_id in {effect.connection_id for effect in effects if not isinstance(effect, LogLine)}:
                if connection_id in self.peers:
                    self.peers[connection_id].abort()
            self.run([effect for effect in effects if isinstance(effect, LogLine)])
            return
        if self._sync_failed:
            self._sync_failed = False
            LOG.warning(SYNC_SUCCEEDED)
        self.run(effects)

    # Time and log lines ---------------------------------------------------------------------------------------------------------------

    def _time_passed(self) -> None:
        effects = self._core.apply(TimePassed(), self.time.steady_ms())
        if self.syncs:
            self.run_after_sync(effects)
        else:
            self.run(effects)

    def advance(self, clock: ShiftedClock, by_ms: int) -> None:
        """Let time pass at once. Each deadline on the way is processed at its own time, in order, as in real time."""
        end_ms = self.time.steady_ms() + by_ms
        while (steady_ms := self.time.steady_ms()) < end_ms:
            deadline_ms = self._core.next_deadline_ms
            next_ms = end_ms if deadline_ms is None else min(max(deadline_ms, steady_ms + 1), end_ms)
            clock.advance(next_ms - steady_ms)
            self._time_passed()
        self.time.rearm()

    def log_rate_limited(self, peer: Peer, what: str, text: str) -> None:
        """Log a line about this connection, rate-limited: many lines of one kind are counted instead."""
        self.log_for_address(what, peer.address.rpartition(":")[0], text)

    def log_for_address(self, what: str, address: str, text: str) -> None:
        """Log a line about a client address, rate-limited."""
        refusals = self._core.state.refusals
        refusals.log_rate_limited(what, address, text, self.time.steady_ms())
        self.run(refusals.take())
        self.time.arm()

    # Shutdown -------------------------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Start no new work from now on."""
        self.is_ending = True
        self.time.end()

    async def send_due_responses(self) -> None:
        """Send the responses that wait only for other requests to have their turn, for example large Produce requests."""
        for _ in range(TURNS_TO_ANSWER):
            steady_ms = self.time.steady_ms()
            if not self._core.has_answers_due(steady_ms):
                return
            self.unsent += self._core.apply(TimePassed(), steady_ms)
            self.sync_and_run()
            await asyncio.sleep(0)


CHECK_INTERVAL_S: Final = 0.001
"""How long after an event loop turn the core's next deadline is checked; within this time there may be ten more turns."""


class CoreTime:
    """Timer of one core on one event loop. `due` is called when the core's deadline is reached.

    `start_ms`: `wall_ms` of the clock at the moment when its `steady_ms` was 0; the core's steady time starts there. `is_check_scheduled`:
    `check_soon` was called, and the check is still pending.
    """

    def __init__(self, core: BrokerCore, clock: Clock, start_ms: int, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self.is_check_scheduled = False
        self._core = core
        self._wall = core.state.wall
        self._clock = clock
        self._start_ms = start_ms
        self._loop = loop
        self._due = due
        self._checked_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._has_ended = False

    def steady_ms(self) -> int:
        """The core's steady time: the monotonic clock, starting at the wall clock time of the start. Once per millisecond it also compares
        the wall clock, which may have been set, or the machine may have been asleep.
        """
        steady_ms = self._start_ms + self._clock.steady_ms()
        if steady_ms != self._checked_ms:
            self._checked_ms = steady_ms
            wall_ms = self._clock.wall_ms()
            if wall_ms - steady_ms != self._wall.offset_ms:
                self._core.set_wall_clock(wall_ms, steady_ms)
        return steady_ms

    def check_soon(self) -> None:
        """Check the core's next deadline soon. A check costs time, so it is done once for all events within a millisecond."""
        self.is_check_scheduled = True
        self._loop.call_later(CHECK_INTERVAL_S, self.arm)

    def arm(self) -> None:
        """Set the timer to the core's next deadline. Waking up early is harmless."""
        self.is_check_scheduled = False
        deadline_ms = self._core.next_deadline_ms
        if self._has_ended or deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self.steady_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._wake)

    def rearm(self) -> None:
        """Set the timer again after the clock was moved: the previous timer counts real time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_ms = None
        self.arm()

    def _wake(self) -> None:
        self._timer = self._timer_ms = None
        try:
            self._due()
        finally:
            self.arm()

    def end(self) -> None:
        """Stop the timer."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
