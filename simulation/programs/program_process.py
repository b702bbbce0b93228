"""Base class of processes that run a program: how it resumes, what is recorded for the checkers, and how the process ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from simulation.programs.programs import Ledger, Program, ProgramStep, Restart, SentRecord, Transaction
from simulation.records import Record
from simulation.world import World


class User(Protocol):
    """The user that survives the process."""

    world: World
    ledger: Ledger

    def finished(self, process: Any) -> None: ...
    def ended(self) -> None: ...
    def request_restart(self, process: Any) -> None: ...


class ProgramProcess(ABC):
    """One incarnation of a producer or consumer with a running program. Subclasses carry out its steps."""

    def __init__(self, user: User, actor: str, program: Program) -> None:
        self.actor = actor
        self._user = user
        self._world = user.world
        self._program = program
        self._transaction: Transaction | None = None
        self._serial = 0
        self._is_dead = False
        self._world.log(actor, "starts")

    def resume(self, outcome: Any = None) -> None:
        """Run the program until it blocks again."""
        if self._is_dead:
            return
        try:
            step = self._program.send(outcome)
        except StopIteration:
            self._world.log(self.actor, "is done")
            self._end()
            self._user.finished(self)
        except Restart as restart:
            self._world.log(self.actor, f"is given up: {restart.__cause__}")
            self._user.request_restart(self)
        else:
            self._begin(step)

    def _resume_soon(self, outcome: Any = None) -> None:
        self._world.after(0, lambda: self.resume(outcome))

    @abstractmethod
    def _begin(self, step: ProgramStep) -> None:
        """Carry out the program's next step; its outcome goes to `resume`."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connections."""

    def die(self, reason: str) -> None:
        """The process is gone: outcomes it has not reported are lost."""
        if self._is_dead:
            return
        self._world.log(self.actor, reason)
        self._end()
        for sent in self._user.ledger.sent.values():
            if sent.sender == self.actor and not (sent.offsets or sent.errors or sent.drops):
                sent.is_orphan = True
                sent.ended_ms = self._world.steady_ms

    def _end(self) -> None:
        self._is_dead = True
        self._close()
        self._user.ended()

    def _note(self, record: Record) -> SentRecord:
        self._serial += 1
        ledger = self._user.ledger
        sent = SentRecord(
            record=record, sender=self.actor, serial=self._serial, transaction=self._transaction, sent_ms=self._world.steady_ms
        )
        assert record.number not in ledger.sent, f"record {record.number} is sent twice by the program"
        ledger.sent[record.number] = sent
        return sent
