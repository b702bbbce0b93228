"""`run(seed)`: one world from its first millisecond to its verdict.

Two phases, as in TigerBeetle's VOPR. First everything goes wrong that the seed's knobs allow, while producers and queries write. Then the
network heals, nothing dies any more, and within a bound of virtual time all work must be done and every transaction decided; after that the
broker is killed once more and started again, and the checkers compare what was promised with what is there.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from chaffinch.broker.core.transaction_moves import TransactionState
from chaffinch.producer.core.in_flight import BROKER_REMEMBERED_BATCHES
from chaffinch.simulation import checkers
from chaffinch.simulation.cluster import BrokerProcess
from chaffinch.simulation.disk import Death
from chaffinch.simulation.nemesis import Deeds, Nemesis
from chaffinch.simulation.network import CALM, Faults, Network
from chaffinch.simulation.producers import MakeProcess, ProducerUser, group_of_producer
from chaffinch.simulation.programs import GROUP_PARTITION
from chaffinch.simulation.queries import Cut, CutKind, Supervisor
from chaffinch.simulation.reading import CommittedReader, read_logs
from chaffinch.simulation.version_2_producer import Version2Process
from chaffinch.simulation.workload import TOPICS, Workload
from chaffinch.simulation.world import Stuck, World

ARMED_BY_CUT_MAX: Final = 4
VERSION_2_EVERY: Final = 4
LYING_EVERY: Final = 5
FORGETFUL_EVERY: Final = 3
CLOCK_EVERY: Final = 7
"""One world of so many has a producer of transaction version 2, a broker that lies, one that forgets, one whose clock is set. By the
seed and not by the dice: the others stay what they are."""
ARMED_BY_END_MAX: Final = 12
"""Disk operations of an end and what follows it: the broker dies in one of them."""
ARMED_ENDS_SHARE: Final = 0.15
STARTS_WITHIN_MS: Final = 10_000
READ_WITHIN_MS: Final = 60_000


MAINTENANCE: Final = {"log.cleaner.backoff.ms": 400, "log.retention.check.interval.ms": 1_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What a world is like. `of` rolls them; a caller may fix any of them."""

    node_count: int = 1
    flush_policy: str = "os"
    plain_count: int = 0
    """Idempotent producers."""
    transactional_count: int = 0
    version_2_count: int = 0
    """Producers of transaction version 2."""
    producer_records: int = 100
    in_flight_max: int = BROKER_REMEMBERED_BATCHES
    """Requests under way per broker, of each producer, at least; with 1 some producers have five nevertheless."""
    query_count: int = 0
    query_rows: int = 60
    query_has_checkpoint: bool = True
    """Whether the sink knows the query's checkpoint."""
    validation_first_share: float = 0.0
    """Of repeated batches: refused with a culprit, as a broker may whose limits have changed."""
    lying_share: float = 0.0
    """Of refusals: with wrong culprits; and some batches are never told that they are refused for good."""
    is_forgetful: bool = False
    """A broker that starts knows one batch of each producer, not five."""
    bad_share: float = 0.04
    value_bytes_max: int = 400
    trouble_ms: int = 8_000
    """How long things go wrong at least; longer while work is left, up to three times that."""
    quiet_limit_ms: int = 45_000
    """How long it may take after that until all is done: twice the longest transaction timeout, ten times what worlds take."""
    faults: Faults = CALM
    deeds: Deeds = field(default_factory=Deeds)
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def of(cls, world: World, overrides: Mapping[str, Any]) -> Knobs:
        """Knobs for this world: some worlds are rough, some nearly calm, because calm ones reach what rough ones never do."""
        dice = world.dice
        flush_policy = dice.choice(("os", "always"))
        roughness = dice.choice((0.2, 1.0, 1.0, 2.0))
        knobs = cls(
            node_count=dice.choice((1, 1, 2, 3)),
            flush_policy=flush_policy,
            plain_count=dice.choice((1, 1, 2)),
            transactional_count=dice.choice((0, 1, 1, 2)),
            version_2_count=int(world.seed % VERSION_2_EVERY == VERSION_2_EVERY - 1),
            producer_records=dice.randint(60, 120),
            in_flight_max=dice.choice((1, BROKER_REMEMBERED_BATCHES)),
            query_count=dice.choice((0, 0, 1)),
            query_rows=dice.randint(40, 120),
            query_has_checkpoint=dice.random() < 0.7,
            validation_first_share=dice.choice((0.0, 0.0, 0.3)),
            lying_share=0.5 * (world.seed % LYING_EVERY == LYING_EVERY - 1),
            is_forgetful=world.seed % FORGETFUL_EVERY == FORGETFUL_EVERY - 1,
            bad_share=dice.choice((0.0, 0.03, 0.1)),
            value_bytes_max=dice.choice((100, 400, 400, 400, 2_000, 2_000, 60_000)),
            faults=Faults(
                latency_max_ms=dice.choice((1, 4, 20)),
                slow_share=dice.choice((0.01, 0.01, 0.06)) * roughness * dice.random(),
                cut_share=0.25 * roughness * dice.random(),
                silent_share=0.1 * roughness * dice.random(),
                lost_answer_share=0.04 * roughness * dice.random(),
                unreachable_share=0.05 * roughness * dice.random(),
            ),
            deeds=Deeds(
                broker_death_ms=int(dice.choice((600, 1_500, 4_000)) / roughness),
                client_death_ms=dice.choice((0, 3_000, 8_000)),
                zombie_ms=dice.choice((0, 0, 5_000)),
                full_disk_ms=dice.choice((0, 0, 1_500, 5_000)),
                clock_step_ms=1_000 * (world.seed % CLOCK_EVERY == CLOCK_EVERY - 1),
                power_loss_share=0.4 if flush_policy == "always" else 0.0,
            ),
        )
        return replace(knobs, **overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of one world. `digest` is of the whole story: two runs with the same one were the same."""

    seed: int
    violations: tuple[str, ...]
    counters: Mapping[str, int]
    digest: str
    virtual_ms: int
    story: tuple[str, ...] = ()


def run(seed: int, *, keeps_story: bool = False, **overrides: Any) -> Report:
    """The world of a seed. `overrides` fix fields of `Knobs`. Never raises for what a core does wrong: that is a violation."""
    world = World(seed, keeps_story=keeps_story)
    scene = _Scene(world, Knobs.of(world, overrides))
    violations: Sequence[str]
    try:
        violations = scene.play()
    except Stuck as stuck:
        violations = [f"stuck: {stuck}: {scene.left()}"]
    except Exception as error:  # A core that raises is what the simulation is looking for.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        violations = [f"raised: {type(error).__name__}: {error} ({frame.name}, line {frame.lineno} of {Path(frame.filename).name})"]
    for violation in violations:
        world.tell("checkers", violation)
    return Report(
        seed=seed,
        violations=tuple(violations),
        counters=dict(sorted(world.counters.items())),
        digest=world.digest,
        virtual_ms=world.elapsed_ms,
        story=tuple(world.lines),
    )


class _Scene:
    """One world's actors."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        self.world = world
        self.knobs = knobs
        self.is_quiet = False
        """Nothing goes wrong any more."""
        self.network = Network(world, knobs.faults)
        self.broker = BrokerProcess(
            world,
            self.network,
            node_count=knobs.node_count,
            settings={"flush.policy": knobs.flush_policy, **MAINTENANCE},
            topics=TOPICS,
            validation_first_share=knobs.validation_first_share,
            lying_share=knobs.lying_share,
            is_forgetful=knobs.is_forgetful,
        )
        self.workload = Workload(world, bad_share=knobs.bad_share, value_bytes_max=knobs.value_bytes_max)
        self.broker.start()
        self.follower = CommittedReader(world, self.network, self.broker, self.broker.partitions, "follower")
        self.queries = [
            self.workload.query(f"query-{number}", knobs.query_rows, has_checkpoint=knobs.query_has_checkpoint)
            for number in range(knobs.query_count)
        ]
        self.supervisors = [
            Supervisor(world, self.network, self.broker.addresses, query, cuts=knobs.cuts, cut_broker=self._cut_broker)
            for query in self.queries
        ]
        self.producers = [self._plain(number) for number in range(knobs.plain_count)]
        self.producers += [self._transactional(number) for number in range(knobs.transactional_count)]
        self.producers += [self._version_2(number) for number in range(knobs.version_2_count)]
        self.actors: list[ProducerUser | Supervisor] = [*self.producers, *self.supervisors]

    def _plain(self, number: int) -> ProducerUser:
        work = iter(self.workload.bursts(self.knobs.producer_records))
        return self._user(f"plain-{number}", self._options(), work)

    def _transactional(self, number: int, name: str = "transactional", process: MakeProcess | None = None) -> ProducerUser:
        name = f"{name}-{number}"
        options = {**self._options(), "transactional.id": name, "transaction.timeout.ms": self.world.dice.choice((4_000, 20_000))}
        work = iter(self.workload.transactions(self.knobs.producer_records))
        return self._user(name, options, work, process)

    def _version_2(self, number: int) -> ProducerUser:
        make = partial(Version2Process, bootstrap=self.broker.addresses, before_end=self._before_end)
        return self._transactional(number, "version-2", make)

    def _user(self, name: str, options: Mapping[str, Any], work: Iterator[Any], process: MakeProcess | None = None) -> ProducerUser:
        return ProducerUser(
            self.world,
            self.network,
            self.broker.addresses,
            name,
            options,
            work,
            process=process,
        )

    def _before_end(self) -> None:
        """The broker may die at the decision, before the markers, between two of them, or before the completion."""
        if self.knobs.deeds.broker_death_ms and not self.is_quiet and self.world.chance(ARMED_ENDS_SHARE):
            self.world.count("armed ends")
            death = Death.POWER_LOST if self.world.chance(self.knobs.deeds.power_loss_share) else Death.KILLED
            self.broker.disk.arm(self.world.dice.randrange(ARMED_BY_END_MAX), death)

    def _options(self) -> dict[str, Any]:
        """A producer's options: small batches and short times, so that a world sees many of both ends."""
        dice = self.world.dice
        return {
            "linger.ms": dice.choice((0, 5, 30)),
            "batch.size": dice.choice((200, 1_000, 1_000, 16_384)),
            "buffer.memory": dice.choice((max(8_000, 2 * self.knobs.value_bytes_max), 1_000_000)),
            "request.timeout.ms": dice.choice((500, 1_000)),
            "delivery.timeout.ms": dice.choice((2_000, 8_000, 60_000)),
            "retry.backoff.ms": dice.choice((10, 100)),
            "retry.backoff.max.ms": 400,
            "compression.type": dice.choice(("none", "none", "gzip", "snappy", "lz4", "zstd")),
            "max.in.flight.requests.per.connection": max(self.knobs.in_flight_max, dice.choice((1, BROKER_REMEMBERED_BATCHES))),
        }

    def play(self) -> list[str]:
        world, knobs = self.world, self.knobs
        actors = self.actors
        nemesis = Nemesis(world, knobs.deeds, self.broker, [actor.kill for actor in actors], [actor.start_beside for actor in actors])
        for actor in actors:
            actor.start()
        trouble_ends_ms = world.now_ms + world.dice.randint(knobs.trouble_ms, 3 * knobs.trouble_ms)
        world.at(trouble_ends_ms, lambda: None)
        world.run(lambda: world.now_ms >= trouble_ends_ms or self._is_done, limit_ms=4 * knobs.trouble_ms, waiting_for="the end of trouble")
        nemesis.stop()
        self.is_quiet = True
        self.broker.stop_lying()
        self.network.heal()
        world.tell("world", "from here on nothing goes wrong")
        world.run(lambda: self._is_done, limit_ms=knobs.quiet_limit_ms, waiting_for="work is left")
        world.run(self._is_decided, limit_ms=knobs.quiet_limit_ms, waiting_for="a transaction is left undecided")
        return self._verdict()

    @property
    def _is_done(self) -> bool:
        return all(actor.is_done for actor in self.actors)

    def left(self) -> str:
        return ", ".join(actor.name for actor in self.actors if not actor.is_done)

    def _is_decided(self) -> bool:
        """Whether no partition and no transactional id has an open transaction: late requests may have opened one that nobody wants."""
        core = self.broker.core
        if core is None or any(p.log.last_stable_offset != p.log.log_end_offset for p in core.topics.partitions()):
            return False
        known = [core.state.transactions.describe(transactional_id) for transactional_id in self._transactional_ids]
        # A full disk may have kept markers of a decided one from being written: that is tried again.
        return all(metadata is None or not (metadata.state is TransactionState.ONGOING or metadata.is_decided) for metadata in known)

    @property
    def _transactional_ids(self) -> list[str]:
        return [*(producer.name for producer in self.producers), *(query.transactional_id for query in self.queries)]

    def _cut_broker(self, kind: CutKind) -> None:
        if kind is CutKind.BROKER_DIES_DURING:
            self.broker.disk.arm(self.world.dice.randrange(ARMED_BY_CUT_MAX))
        else:
            self.broker.die(Death.KILLED)

    def _verdict(self) -> list[str]:
        """Read everything, kill the broker once more, read again, check."""
        world, broker = self.world, self.broker
        assert broker.core is not None
        before = read_logs(broker.core)
        broker.die(Death.POWER_LOST if self.knobs.flush_policy == "always" else Death.KILLED)
        world.run(lambda: broker.core is not None, limit_ms=STARTS_WITHIN_MS, waiting_for="the broker does not start again")
        reader = CommittedReader(world, self.network, broker, broker.partitions, "reader")
        for each in (reader, self.follower):
            each.finish()
        world.run(
            lambda: reader.is_done and self.follower.is_done,
            limit_ms=READ_WITHIN_MS,
            waiting_for="a read_committed reader does not come to the end",
        )
        logs, committed = read_logs(broker.core), reader.found
        found = [
            *checkers.logs_are_decided(logs),
            *checkers.logs_survive(before, logs),
            *checkers.offsets_are_dense(logs),
            *checkers.sequences_run_on(logs),
            *checkers.readers_agree("reader", committed, logs),
            *checkers.readers_agree("follower", self.follower.found, logs),
        ]
        away = checkers.compacted_away([producer.ledger for producer in self.producers], logs)
        world.count("records compacted away", len(away))
        for producer in self.producers:
            found += self._producer_verdict(producer, logs, committed, away)
        for query in self.queries:
            world.count("rows", len(query.rows()))
            found += [*checkers.rows_are_written_once(query, committed), *checkers.rows_are_in_order(query, committed)]
        world.count("records in logs", sum(len(log.records) for log in logs.values()))
        world.count("records visible", sum(map(len, committed.values())))
        return found

    def _producer_verdict(
        self, producer: ProducerUser, logs: checkers.Logs, committed: checkers.Committed, away: frozenset[int]
    ) -> list[str]:
        ledger, core = producer.ledger, self.broker.core
        assert core is not None
        offset = core.state.offsets.fetch(group_of_producer(ledger.name), GROUP_PARTITION)
        for transaction in ledger.transactions:
            self.world.count(f"transactions {transaction.fate.value}")
        self.world.count("records sent", len(ledger.told))
        self.world.count("records acknowledged", sum(bool(told.offsets) for told in ledger.told.values()))
        return [
            *checkers.every_record_ends_once(ledger),
            *checkers.outcomes_are_true(ledger, logs, away),
            *checkers.only_culprits_are_blamed(ledger, self.broker.accused),
            *checkers.order_is_kept(ledger, logs),
            *checkers.transactions_are_whole(ledger, committed, away),
            *checkers.offsets_follow_transactions(ledger, committed, None if offset is None else offset.offset, away),
        ]
