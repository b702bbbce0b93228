"""Consumer groups of the simulation: members that join, leave, are killed or too slow, and read until everything is read.

`Group` holds what members share: the history, the topics and the end condition. `Member` survives its processes, as `ProducerUser` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from chaffinch.errors import KafkaException
from chaffinch.errors.codes import FENCED_INSTANCE_ID
from chaffinch.identifiers import TopicPartition
from simulation.brokers.broker_process import BrokerProcess
from simulation.consumers.consumer_checkers import visible_to_group
from simulation.consumers.consumer_shell import ConsumerShell
from simulation.consumers.history import History
from simulation.log_reader import read_log
from simulation.network import Network
from simulation.programs.program_process import ProgramProcess
from simulation.programs.programs import Commit, Leave, Ledger, Poll, Program, Restart, Sleep
from simulation.workload import RECREATED
from simulation.world import World, all_hold

POLL_INTERVAL_MS: Final = 3_000
RESTART_MS_MAX: Final = 1_500
SLOW_SHARE: Final = 0.01
"""Share of polls whose records take longer than max.poll.interval.ms to process."""
POLL_MS: Final = 50
LARGE_BYTES: Final = 2_000
"""For values up to this size, a fetch of a member holds from less than one to all of them."""
INCARNATIONS_MAX: Final = 80
STRATEGIES: Final = ("range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky")


class Group:
    """A consumer group. `shells`: those of the living processes."""

    def __init__(
        self,
        world: World,
        network: Network,
        broker: BrokerProcess,
        name: str,
        topics: Sequence[str],
        *,
        committed_only: bool,
        begins_at_end: bool = False,
        value_bytes_max: int = LARGE_BYTES,
    ):
        """`value_bytes_max`: largest value to read; fetch sizes grow with it."""
        self.world = world
        self.network = network
        self.broker = broker
        self.name = name
        self.topics = tuple(topics)
        self.history = History(group=name, is_committed_only=committed_only, begins_at_end=begins_at_end, end_of=self._end_offset)
        self.tps = [tp for tp in broker.partitions if tp.topic in topics and tp.topic != RECREATED.name]
        self.shells: list[ConsumerShell] = []
        self._is_finishing = False
        self._is_over = False
        self._is_all_read = all_hold(lambda tp: not self._has_unread(tp), self.tps)
        self._next_check_ms = 0
        self._options = self._common_options(world, committed_only, max(1, value_bytes_max // LARGE_BYTES))

    def _common_options(self, world: World, committed_only: bool, size: int) -> dict[str, Any]:
        rng = world.rng
        return {
            "bootstrap.servers": ",".join(map(str, self.broker.addresses)),
            "group.id": self.name,
            "auto.offset.reset": "latest" if self.history.begins_at_end else "earliest",
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "partition.assignment.strategy": rng.choice(STRATEGIES),
            "session.timeout.ms": 2_000,
            "heartbeat.interval.ms": 400,
            "max.poll.interval.ms": POLL_INTERVAL_MS,
            "request.timeout.ms": 1_000,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 400,
            "fetch.max.wait.ms": rng.choice((100, 400)),
            "fetch.max.bytes": rng.choice((2_000, 20_000, 1 << 20)) * size,
            "max.partition.fetch.bytes": rng.choice((1_000, 10_000)) * size,
            "metadata.max.age.ms": 5_000,
        }

    def shell(self, actor: str, options: Mapping[str, Any], resume: Callable[[Any], None], *, commits_on_revoke: bool) -> ConsumerShell:
        """Create a consumer in the group."""
        shell = ConsumerShell(
            self.world,
            self.network,
            actor,
            {**self._options, **options, "client.id": actor},
            self.topics,
            self.history,
            resume,
            commits_on_revoke=commits_on_revoke,
        )
        self.shells.append(shell)
        return shell

    def finish(self) -> None:
        """Nothing more will be written: members end when everything is read."""
        self._is_finishing = True

    @property
    def is_over(self) -> bool:
        """Whether members may end: everything is read and committed. Stays True once it is."""
        if self._is_finishing and not self._is_over and self.world.steady_ms >= self._next_check_ms:
            self._next_check_ms = self.world.steady_ms + POLL_MS
            self._is_over = self._is_all_read()
        return self._is_over

    @property
    def is_finishing(self) -> bool:
        return self._is_finishing

    def _end_offset(self, tp: TopicPartition) -> int | None:
        """Where a member that starts at the end starts now; None while that is unknown."""
        core = self.broker.core
        partition = None if core is None else core.topics.partition(*tp)
        if partition is None:
            return None
        return partition.log.last_stable_offset if self.history.is_committed_only else partition.log.high_watermark

    def _has_unread(self, tp: TopicPartition) -> bool:
        """Whether records follow the committed offset."""
        core = self.broker.core
        partition = None if core is None else core.topics.partition(*tp)
        if core is None or partition is None:
            return True
        committed = core.state.offsets.fetch(self.name, tp)
        if committed is None and self.history.begins_at_end:
            return True
        contents = read_log(partition, max(partition.log.log_start_offset, 0 if committed is None else committed.offset))
        return bool(visible_to_group(self.history, contents))


class Member:
    """One position in a group and the successive processes that fill it. `is_leaving`: the process is to end cleanly.

    A process that was replaced without being informed ends when it is fenced, or with the group.
    """

    def __init__(self, group: Group, name: str, options: Mapping[str, Any]) -> None:
        self.ledger = Ledger(name=name)
        self.group = group
        self.world = group.world
        self.options = options
        self.is_leaving = False
        self._incarnations = 0
        self._live_count = 0
        self._newest: MemberProcess | None = None

    @property
    def name(self) -> str:
        return self.ledger.name

    @property
    def is_done(self) -> bool:
        """The group is over and no process is left."""
        return self.group.is_over and not self._live_count

    def start(self) -> None:
        if not self.group.is_over and self._newest is None:
            self._start_another()

    def start_twin(self) -> None:
        """Start another process with the same group.instance.id while the newest still works."""
        if not (self.group.is_over or self._newest is None or self.is_leaving):
            self.world.count("members given a twin")
            self._start_another()

    def _start_another(self) -> None:
        self._incarnations += 1
        self._live_count += 1
        self.is_leaving = False
        assert self._incarnations <= INCARNATIONS_MAX, f"{self.name} restarts for ever: {self.ledger.calls_failed[-3:]}"
        self._newest = MemberProcess(self, f"{self.name}.{self._incarnations}")
        self._newest.resume()

    def kill(self) -> None:
        """SIGKILL to the newest process: the group notices when its session expires."""
        if self._newest is not None:
            self.world.count("members killed")
            self._newest.die("killed")
            self._start_after(self._newest)

    def start_replacement(self) -> None:
        """Let the process leave the group cleanly; another one starts later."""
        self.world.count("members asked to leave")
        self.is_leaving = True

    def finished(self, process: ProgramProcess) -> None:
        self._start_after(process)

    def ended(self) -> None:
        self._live_count -= 1

    def request_restart(self, process: ProgramProcess) -> None:
        process.die("its program needs a new consumer")
        self._start_after(process)

    def _start_after(self, process: ProgramProcess) -> None:
        """Start the next process soon, unless a newer one replaced this one."""
        if process is self._newest:
            self._newest = None
            self.world.after(self.world.rng.randint(1, RESTART_MS_MAX), self.start)


class MemberProcess(ProgramProcess):
    """One consumer and its program."""

    def __init__(self, member: Member, actor: str) -> None:
        super().__init__(member, actor, reading_program(member))
        self._group = member.group
        auto_commits = bool(member.options["enable.auto.commit"])
        self.shell = member.group.shell(actor, member.options, self.resume, commits_on_revoke=not auto_commits)

    def _begin(self, step: Any) -> None:
        if isinstance(step, Sleep):
            self._world.after(step.ms, self.resume)
        else:
            self.shell.begin(step)

    def _close(self) -> None:
        self.shell.close()
        self._group.shells.remove(self.shell)


def reading_program(member: Member) -> Program:
    """Poll, work, commit (unless that is automatic), until the group is over or the process is to leave."""
    rng, is_automatic = member.world.new_rng(), bool(member.options["enable.auto.commit"])
    while not (member.group.is_over or member.is_leaving):
        got = yield Poll(rng.choice((0, 50, 300)))
        if isinstance(got, KafkaException):
            member.ledger.calls_failed.append(f"poll: {got!r}")
            member.world.count(f"polls failed: {type(got).__name__}")
            if got.code is FENCED_INSTANCE_ID:
                raise Restart from got
        yield Sleep(POLL_INTERVAL_MS + 500 if rng.random() < SLOW_SHARE else rng.choice((1, 20, 60)))
        if not is_automatic and (member.group.is_finishing or (got and rng.random() < 0.7)):
            yield Commit(waits=rng.random() < 0.7)
    if not is_automatic:
        yield from _commit_all(member)
    yield Leave()


def _commit_all(member: Member) -> Iterator[Any]:
    """The commit at the end of a program. If it fails, the next member reads those records again."""
    error = yield Commit()
    if error is not None:
        member.ledger.calls_failed.append(f"commit: {error!r}")
