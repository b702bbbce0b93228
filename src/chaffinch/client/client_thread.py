"""The thread behind a client that works on its own: how it starts and ends, and how it hears that nobody holds the client any more.

However it ends (it is stopped, or a mistake of ours), whoever waits, and whoever calls later, gets an error rather than waiting for ever.
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

# At the end of the interpreter: a thread that is told to end does so at once, unless it is in a callback that hangs.
EXIT_WAIT_MS: Final = 1_000


class ClientThread(ABC):
    """One thread and the network that it owns. A subclass says what it does (`_loop`), and settles everybody at the end (`_end`)."""

    def __init__(self, network: Network, name: str, kind: str, log: Logger) -> None:
        """`name`: the thread's own. `kind`: what its client is called, for people."""
        self.name: Final = name
        self.death: KafkaException | None = None
        """Why the thread is no more, once it has ended."""
        self._network = network
        self._is_stopping = False
        self._unclosed: object | None = None
        """The client, when nobody else holds it any more and nobody has closed it."""
        self._on_ended: Callable[[], None] | None = None
        self._kind = kind
        self._log = log
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """May fail, or be interrupted: what waits for the thread's end comes after it."""
        self._thread.start()

    def check_alive(self) -> None:
        """Raise why the thread is no more, if it has ended."""
        if self.death is not None:
            raise copy_for_raise(self.death)

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is this thread: a callback that must not wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._is_stopping

    def stop(self, timeout_ms: int | None = None) -> None:
        """End the thread; what is under way is forgotten."""
        self._is_stopping = True
        self._network.wakeup()
        if not self.is_own_thread:
            self._thread.join(None if timeout_ms is None else timeout_ms / 1000)

    def abandon(self, client: object, on_ended: Callable[[], None] | None = None) -> None:
        """Nobody holds the client any more, and nobody has closed it: end in its stead, and call `on_ended` then.

        Takes no lock and warns nobody: Python may collect the client in any thread, in the midst of anything. This thread does both.
        """
        self._on_ended = on_ended
        self._unclosed = client
        self._network.wakeup()

    def warn_of_unclosed(self) -> None:
        """Give the ResourceWarning, with no lock held, and let the client go. Whatever goes wrong is logged, and the thread goes on."""
        client, self._unclosed = self._unclosed, None
        try:
            text = f"{client!r} was not closed: close it, or use it in a with statement"
            try:
                warnings.warn(text, ResourceWarning, stacklevel=1, source=client)
            except Exception:  # A filter made an error of it: it is told like any that nobody can catch.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
        except BaseException:  # Of a hook of the application, say: what was accepted must not be lost for it.
            self._log.exception("nobody could be warned that the %s was not closed", self._kind)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # The top of the thread: whatever it is, nobody may be left waiting.
            self._log.exception("the %s's thread has died", self._kind)
            death = KafkaException(f"the {self._kind}'s thread has died: {error!r}")
            death.__cause__ = error
            self._end(death)
        else:
            self._end(IllegalStateException(f"the {self._kind} was closed meanwhile"))
        finally:
            self._network.close()
            if self._unclosed is not None:
                self.warn_of_unclosed()
            if self._on_ended is not None:
                self._on_ended()

    @abstractmethod
    def _loop(self) -> None:
        """Work until the thread is to end."""

    @abstractmethod
    def _end(self, death: KafkaException) -> None:
        """Settle everybody: whoever waits, and, with `death`, whoever calls from now on."""
