"""Background thread of a client: start, stop, and the notice that the client was garbage-collected without `close`.

However the thread ends, even by a defect of Chaffinch, waiting and later callers get an error and never wait forever.
"""

from __future__ import annotations

import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import Logger
from typing import Final

from chaffinch.client.network import Network
from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.errors.copies import copy_for_raise

# At interpreter exit: a stopped thread ends immediately, unless it is in a callback that hangs.
EXIT_WAIT_MS: Final = 1_000


class ClientThread(ABC):
    """One thread and the network that it owns. A subclass implements its work (`_loop`) and completes all calls at the end (`_end`)."""

    def __init__(self, network: Network, name: str, kind: str, log: Logger) -> None:
        """`name`: the thread's name. `kind`: the client in log lines and errors, such as `producer`."""
        self.name: Final = name
        self.death: KafkaException | None = None
        """Why the thread has ended; None while it runs."""
        self._network = network
        self._is_stopping = False
        self._unclosed: object | None = None
        """The client, if it was garbage-collected without `close`."""
        self._on_ended: Callable[[], None] | None = None
        self._kind = kind
        self._log = log
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """May fail or be interrupted: register anything that waits for the thread's end only afterwards."""
        self._thread.start()

    def check_alive(self) -> None:
        """Raise the reason if the thread has ended."""
        if self.death is not None:
            raise copy_for_raise(self.death)

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is on this thread, as a callback is, which must not wait for it."""
        return threading.current_thread() is self._thread

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping

    def stop(self, timeout_ms: int | None = None) -> None:
        """End the thread. Requests in flight are dropped."""
        self._is_stopping = True
        self._network.wakeup()
        if not self.is_own_thread:
            self._thread.join(None if timeout_ms is None else timeout_ms / 1000)

    def abandon(self, client: object, on_ended: Callable[[], None] | None = None) -> None:
        """The client was garbage-collected without `close`: close it on this thread, then call `on_ended`.

        Takes no lock and issues no warning, because garbage collection may run on any thread at any point. This thread does both.
        """
        self._on_ended = on_ended
        self._unclosed = client
        self._network.wakeup()

    def warn_of_unclosed(self) -> None:
        """Issue the ResourceWarning, without holding a lock, and release the client. Errors are logged, and the thread continues."""
        client, self._unclosed = self._unclosed, None
        try:
            text = f"{client!r} was not closed: close it, or use it in a with statement"
            try:
                warnings.warn(text, ResourceWarning, stacklevel=1, source=client)
            except Exception:  # A filter turned the warning into an error: report it as uncaught.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
        except BaseException:  # From a hook of the application, for example: accepted records must not be lost because of it.
            self._log.exception("cannot issue the warning that the %s was not closed", self._kind)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # Top of the thread: no caller may be left waiting.
            self._log.exception("the %s's thread has died", self._kind)
            death = KafkaException(f"the {self._kind}'s thread has died: {error!r}")
            death.__cause__ = error
            self._end(death)
        else:
            self._end(IllegalStateException(f"the {self._kind} was closed in the meantime"))
        finally:
            self._network.close()
            if self._unclosed is not None:
                self.warn_of_unclosed()
            if self._on_ended is not None:
                self._on_ended()

    @abstractmethod
    def _loop(self) -> None:
        """Work until the thread is stopped."""

    @abstractmethod
    def _end(self, death: KafkaException) -> None:
        """Fail all waiting calls, and every later call, with `death`."""
