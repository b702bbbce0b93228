"""What all processes that run a program have in common: how it goes on, what is noted for the checkers, and how the process ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from simulation.programs.programs import Ledger, Program, Restart, Told, Transaction, Wanted
from simulation.records import Record
from simulation.world import World


class User(Protocol):
    """Who survives the process."""

    world: World
    ledger: Ledger

    def finished(self, process: Any) -> None: ...
    def ended(self) -> None: ...
    def wants_restart(self, process: Any) -> None: ...


class ProgramProcess(ABC):
    """One incarnation of a producer: a program somewhere in the middle. A subclass performs what the program wants."""

    def __init__(self, user: User, who: str, program: Program) -> None:
        self.who = who
        self._user = user
        self._world = user.world
        self._program = program
        self._transaction: Transaction | None = None
        self._serial = 0
        self._is_dead = False
        self._world.tell(who, "starts")

    def go_on(self, outcome: Any = None) -> None:
        """The program runs until it blocks again."""
        if self._is_dead:
            return
        try:
            wanted = self._program.send(outcome)
        except StopIteration:
            self._world.tell(self.who, "is done")
            self._end()
            self._user.finished(self)
        except Restart as restart:
            self._world.tell(self.who, f"is given up: {restart.__cause__}")
            self._user.wants_restart(self)
        else:
            self._begin(wanted)

    def _go_on_soon(self, outcome: Any = None) -> None:
        self._world.after(0, lambda: self.go_on(outcome))

    @abstractmethod
    def _begin(self, wanted: Wanted) -> None:
        """Do what the program wants next; its outcome goes to `go_on`."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the connections."""

    def die(self, reason: str) -> None:
        """The process is gone: what it had not told nobody will ever be told."""
        if self._is_dead:
            return
        self._world.tell(self.who, reason)
        self._end()
        for told in self._user.ledger.told.values():
            if told.sender == self.who and not (told.offsets or told.errors or told.drops):
                told.is_orphan = True
                told.ended_ms = self._world.steady_ms

    def _end(self) -> None:
        self._is_dead = True
        self._close()
        self._user.ended()

    def _note(self, record: Record) -> Told:
        self._serial += 1
        ledger = self._user.ledger
        told = Told(record=record, sender=self.who, serial=self._serial, transaction=self._transaction, sent_ms=self._world.steady_ms)
        assert record.number not in ledger.told, f"record {record.number} is sent twice by the program"
        ledger.told[record.number] = told
        return told
