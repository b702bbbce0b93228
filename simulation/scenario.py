"""One world from start to verdict: `run(seed)`.

Two phases, as in TigerBeetle's VOPR. In the first phase the faults of the seed's knobs happen, while producers and queries write.
Then the network heals and no process dies. Within a bound of virtual time all work must be done and every transaction decided.
Finally the broker is killed and started once more, and the checkers compare the promised outcomes with the logs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final

from chaffinch.broker.core.transactions.moves import TransactionState
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.in_flight import BROKER_REMEMBERED_BATCHES
from simulation import checkers
from simulation.administrator import Administrator, DeletedTopic
from simulation.brokers.broker_process import BrokerProcess, TopicPlan
from simulation.brokers.disk import Death
from simulation.consumers import consumer_checkers
from simulation.consumers.groups import Group, Member
from simulation.consumers.transformers import Transformer
from simulation.knobs import Knobs
from simulation.log_reader import CommittedReader, flushed_end, read_logs
from simulation.nemesis import Nemesis
from simulation.network import Network
from simulation.programs.early_close import EarlyCloseProcess
from simulation.programs.producers import EMPTY_BURST, MakeProcess, ProducerUser
from simulation.programs.programs import GROUP_PARTITION, Burst, Ledger, group_of_producer
from simulation.programs.version_2_producer import Version2Process
from simulation.queries.cuts import CutKind
from simulation.queries.query_driver import AWAY_MS
from simulation.queries.supervisor import Supervisor
from simulation.report import CRASHES, CRASHES_UNDER_FAULTS, PRODUCE_RESPONSES_LOST, Report
from simulation.workload import COUNTED, RECREATED, TARGETS, TOPICS, TRANSFORMED, TRIMMED, Workload
from simulation.world import Stuck, World, all_hold

ARMED_BY_CUT_MAX: Final = 4
ARMED_BY_END_MAX: Final = 12
"""Number of disk operations after an EndTxn is sent; the broker dies in one of them."""
ARMED_ENDS_SHARE: Final = 0.15
STARTS_WITHIN_MS: Final = 10_000
READ_WITHIN_MS: Final = 60_000
BACK_SINCE_MS: Final = 5_000
FETCHED_VALUES: Final = 10
"""How many of the largest values fit in a reader's response: with one each, reading would dominate the world."""


SETTINGS: Final = {
    "auto.create.topics.enable": False,
    "log.cleaner.backoff.ms": 400,
    "log.retention.check.interval.ms": 1_000,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1_000,
    "replica.lag.time.max.ms": 1_500,
    "leader.imbalance.check.interval.seconds": 2,
}
"""Broker settings that make periodic tasks and groups run in the short time of a world."""
INLINE_SEND_OPTIONS: Final = {"linger.ms": 0, "compression.type": "none"}
"""Options of a producer with inline send."""
RECORDS_FOR_AN_ANSWER: Final = 10
"""More than one, because a single record might be bad and never be sent."""
SCARCE_BYTES: Final = 2_000
"""Room for a key, the bookkeeping of a record, and records that are too large."""


def run(seed: int, *, keeps_trace: bool = False, **overrides: Any) -> Report:
    """Run the world of a seed. `overrides` fix fields of `Knobs`. An exception raised by a core is reported as a violation."""
    world = World(seed)
    scene = _Scene(world, Knobs.of(world, overrides))
    violations: Sequence[str]
    try:
        violations = scene.play()
    except Stuck as stuck:
        violations = [f"stuck: {stuck}: {scene.unfinished()}"]
    except Exception as error:  # Exceptions of a core are what the simulation looks for.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        violations = [f"raised: {type(error).__name__}: {error} ({frame.name}, line {frame.lineno} of {Path(frame.filename).name})"]
    for violation in violations:
        world.log("checkers", violation)
    return Report(
        seed=seed,
        violations=tuple(violations),
        counters=dict(sorted(world.counters.items())),
        digest=world.digest,
        virtual_ms=world.elapsed_ms,
        trace=tuple(world.trace) if keeps_trace else (),
    )


class _Scene:
    """The actors of one world."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        self.world = world
        self.knobs = knobs
        self.quiet_since_ms: int | None = None
        """Start of the quiet phase, without faults."""
        self.sent_last: set[int] = set()
        """Records sent long after that."""
        self.network = Network(world, knobs.faults)
        recreated = RECREATED if knobs.fault_schedule.recreate_ms else None
        self.targets = TARGETS if recreated is None else [*TARGETS, recreated]
        self.broker = BrokerProcess(
            world,
            self.network,
            node_count=knobs.node_count,
            settings={"flush.policy": knobs.flush_policy, "transaction.version": knobs.transaction_version, **SETTINGS},
            topics=[*TOPICS, *([COUNTED] if knobs.transformer_count else []), *([] if recreated is None else [recreated])],
            validation_first_share=knobs.validation_first_share,
            lying_share=knobs.lying_share,
            is_forgetful=knobs.is_forgetful,
            replication=knobs.node_count if knobs.fault_schedule.node_stop_ms else 1,
            lost_response_at=knobs.lost_response_at,
            supports_topic_ids=knobs.supports_topic_ids,
        )
        self.workload = Workload(world, bad_share=knobs.bad_share, value_bytes_max=knobs.value_bytes_max)
        self.broker.start()
        trimmed = [tp for tp in self.broker.partitions if tp.topic in TRIMMED]
        self.administrator = Administrator(world, self.broker, recreated, trimmed)
        self.follower = self._committed_reader(self._permanent_partitions, "follower")
        self.queries = [
            self.workload.query(
                f"query-{number}",
                knobs.query_rows,
                batch_count=knobs.query_batches if knobs.query_is_stream else 1,
                is_stream=knobs.query_is_stream,
                may_be_empty=knobs.query_may_be_empty,
                has_checkpoint=knobs.query_has_checkpoint,
                has_handler=knobs.query_has_handler,
            )
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
        self.readers = self._group(
            "readers", tuple(topic.name for topic in self.targets), committed_only=knobs.reads_committed, begins_at_end=knobs.reads_latest
        )
        self.members = [self._member(number) for number in range(knobs.reader_count)]
        self.transformers_group = self._group("transformers", TRANSFORMED, committed_only=True)
        self.transformers = [self._transformer(number) for number in range(knobs.transformer_count)]

    def _plain(self, number: int) -> ProducerUser:
        count = self.knobs.producer_records
        has_tables = self.knobs.has_tables and number == 0
        work = iter(self.workload.tables(count) if has_tables else self.workload.bursts(count, self.targets))
        return self._user(f"plain-{number}", self._plain_options(), work, last=self._last_burst)

    def _last_burst(self) -> Burst | None:
        """In worlds with a recreated topic, producers write to it once more after it is back for good."""
        if not self.knobs.fault_schedule.recreate_ms:
            return EMPTY_BURST
        if self.quiet_since_ms is None or self.world.steady_ms - self.quiet_since_ms < BACK_SINCE_MS:
            return None
        burst = self.workload.good_burst(RECREATED)
        self.sent_last.update(record.number for record in burst.records)
        return burst

    def _transactional(self, number: int) -> ProducerUser:
        return self._in_transactions(f"transactional-{number}", self.targets, EarlyCloseProcess if self.knobs.closes_early else None)

    def _in_transactions(self, name: str, targets: Sequence[TopicPlan], process: MakeProcess | None = None) -> ProducerUser:
        options = {**self._options(), "transactional.id": name, "transaction.timeout.ms": self.world.rng.choice((4_000, 20_000))}
        work = iter(self.workload.transactions(self.knobs.producer_records, targets))
        return self._user(name, options, work, process)

    def _version_2(self, number: int) -> ProducerUser:
        make = partial(Version2Process, bootstrap=self.broker.addresses, before_end=self._before_end)
        return self._in_transactions(f"version-2-{number}", TARGETS, make)

    def _user(
        self,
        name: str,
        options: Mapping[str, Any],
        work: Iterator[Any],
        process: MakeProcess | None = None,
        last: Callable[[], Burst | None] = lambda: EMPTY_BURST,
    ) -> ProducerUser:
        return ProducerUser(
            self.world,
            self.network,
            self.broker.addresses,
            name,
            options,
            work,
            process=process,
            last=last,
            has_handler=self.knobs.has_handler,
            has_inline_send=self.knobs.has_inline_send and "transactional.id" not in options,
        )

    def _group(self, name: str, topics: Sequence[str], *, committed_only: bool, begins_at_end: bool = False) -> Group:
        return Group(
            self.world,
            self.network,
            self.broker,
            name,
            topics,
            committed_only=committed_only,
            begins_at_end=begins_at_end,
            value_bytes_max=self.knobs.value_bytes_max,
        )

    def _committed_reader(self, partitions: Sequence[TopicPartition], actor: str) -> CommittedReader:
        fetch_bytes = FETCHED_VALUES * self.knobs.value_bytes_max
        return CommittedReader(self.world, self.network, self.broker, partitions, actor, fetch_bytes=fetch_bytes)

    def _member(self, number: int) -> Member:
        rng = self.world.rng
        options = {
            "enable.auto.commit": rng.random() < 0.5,
            "auto.commit.interval.ms": rng.choice((0, 300)),
            "max.poll.records": rng.choice((3, 20, 500)),
            "group.instance.id": f"member-{number}" if rng.random() < 0.3 or self.knobs.fault_schedule.twin_ms else None,
        }
        return Member(self.readers, f"reader-{number}", {name: value for name, value in options.items() if value is not None})

    def _transformer(self, number: int) -> Transformer:
        name = f"transformer-{number}"
        options = {**self._options(), "transactional.id": name, "transaction.timeout.ms": self.world.rng.choice((4_000, 20_000))}
        return Transformer(
            self.transformers_group,
            name,
            options,
            self.workload.record_for,
            abort_share=self.knobs.abort_share,
            seek_timeout_ms=self.knobs.seek_timeout_ms,
            is_static=self.knobs.fault_schedule.twin_ms > 0,
        )

    def _before_end(self) -> None:
        """Arm a broker death: at the decision, before or between the markers, or before the completion."""
        if self.knobs.fault_schedule.broker_death_ms and self.quiet_since_ms is None and self.world.chance(ARMED_ENDS_SHARE):
            self.world.count("armed ends")
            death = Death.POWER_LOST if self.world.chance(self.knobs.fault_schedule.power_loss_share) else Death.KILLED
            self.broker.disk.arm(self.world.rng.randrange(ARMED_BY_END_MAX), death)

    def _options(self) -> dict[str, Any]:
        """Options of a producer: small batches and short times, so that a world reaches both ends of each limit often."""
        rng = self.world.rng
        return {
            "linger.ms": rng.choice((0, 5, 30)),
            "batch.size": rng.choice((200, 1_000, 1_000, 16_384)),
            "buffer.memory": rng.choice((max(8_000, 2 * self.knobs.value_bytes_max), 1_000_000)),
            "request.timeout.ms": rng.choice((500, 1_000)),
            "delivery.timeout.ms": rng.choice((2_000, 8_000, 60_000)),
            "retry.backoff.ms": rng.choice((10, 100)),
            "retry.backoff.max.ms": 400,
            "compression.type": rng.choice(("none", "none", "gzip", "snappy", "lz4", "zstd")),
            "max.in.flight.requests.per.connection": max(self.knobs.in_flight_max, rng.choice((1, BROKER_REMEMBERED_BATCHES))),
        }

    def _plain_options(self) -> dict[str, Any]:
        """Options of a producer without transactions. With inline send its memory may hold one large record but not two."""
        options = self._options()
        if not self.knobs.has_inline_send:
            return options
        memory_bytes = self.world.rng.choice((options["buffer.memory"], self.knobs.value_bytes_max + SCARCE_BYTES))
        return {**options, **INLINE_SEND_OPTIONS, "buffer.memory": memory_bytes}

    def play(self) -> list[str]:
        world, knobs = self.world, self.knobs
        all_actors: list[ProducerUser | Supervisor | Member] = [*self.actors, *self.members, *self.transformers]
        kills, replacements = [each.kill for each in all_actors], [each.start_replacement for each in all_actors]
        twins = [*(member.start_twin for member in self.members), *(each.start_replacement for each in self.transformers)]
        nemesis = Nemesis(world, knobs.fault_schedule, self.broker, self.administrator, kills, replacements, twins)
        for actor in all_actors:
            actor.start()
        trouble_ends_ms = world.steady_ms + world.rng.randint(knobs.trouble_ms, 3 * knobs.trouble_ms)
        world.at(trouble_ends_ms, lambda: None)
        is_done = all_hold(_has_nothing_to_do, self.actors)
        world.run(
            lambda: not nemesis.owes_a_death and (world.steady_ms >= trouble_ends_ms or is_done()),
            limit_ms=4 * knobs.trouble_ms,
            waiting_for="the end of trouble",
        )
        nemesis.stop()
        world.count(CRASHES_UNDER_FAULTS, sum(world.counters[name] for name in CRASHES))
        self.quiet_since_ms = world.steady_ms
        self.broker.stop_lying()
        self.network.heal()
        world.log("world", "faults end")
        self._wait_until_done(self.actors)
        self._write_required_records()
        for group, users in ((self.transformers_group, self.transformers), (self.readers, self.members)):
            if users:
                self._await_late_records()
                group.finish()
                self._wait_until_done(users)
        return self._verdict()

    def _write_required_records(self) -> None:
        """Write the missing records of worlds whose transactions did not all begin, and lose an answer if none was lost."""
        count = sum(len(user.ledger.sent) for user in [*self.producers, *self.transformers]) + sum(
            len(query.rows()) for query in self.queries
        )
        missing = max(0, self.knobs.required_records - count)
        if self.knobs.required_records and not self.world.counters[PRODUCE_RESPONSES_LOST]:
            missing = max(missing, RECORDS_FOR_AN_ANSWER)
            self.broker.lose_next_answer()
        if missing:
            self.world.count("records written at the end", missing)
            rest = self._user("plain-rest", self._plain_options(), iter(self.workload.bursts(missing)))
            self.producers.append(rest)
            rest.start()
            self._wait_until_done([rest])

    def _wait_until_done(self, users: Sequence[ProducerUser | Supervisor | Member]) -> None:
        """Run until the users are done and every transaction is decided."""
        limit_ms = self.knobs.quiet_limit_ms
        self.world.run(all_hold(attrgetter("is_done"), users), limit_ms=limit_ms, waiting_for="work is left")
        self.world.run(self._is_decided, limit_ms=limit_ms, waiting_for="a transaction is left undecided")

    def _await_late_records(self) -> None:
        """Records of producers that died long ago may still be in flight. Readers that read to the end of the logs finish after that."""
        world, names = self.world, tuple(f"{user.name}." for user in self.actors)
        until_ms = self.network.arrives_ms(lambda process: process.startswith(names))
        world.at(until_ms, lambda: None)
        world.run(lambda: world.steady_ms >= until_ms, limit_ms=max(0, until_ms - world.steady_ms), waiting_for="late records")

    def unfinished(self) -> str:
        """The actors that are not done."""
        return ", ".join(user.name for user in [*self.actors, *self.transformers, *self.members] if not user.is_done)

    def _is_decided(self) -> bool:
        """Whether no partition and no transactional id has an open transaction. Late requests may have opened one after its producer was
        gone."""
        core = self.broker.core
        if core is None or not self.broker.is_settled:
            return False
        if any(p.log.last_stable_offset != p.log.log_end_offset for p in core.topics.partitions()):
            return False
        known = [core.state.transactions.describe(transactional_id) for transactional_id in self._transactional_ids]
        # A full disk may have prevented the markers of a decided transaction; the broker tries again.
        return all(metadata is None or not (metadata.state is TransactionState.ONGOING or metadata.is_decided) for metadata in known)

    @property
    def _permanent_partitions(self) -> list[TopicPartition]:
        """Partitions of topics that are never deleted."""
        return [tp for tp in self.broker.partitions if tp.topic != RECREATED.name]

    @property
    def _transactional_ids(self) -> list[str]:
        return [*(user.name for user in [*self.producers, *self.transformers]), *(query.transactional_id for query in self.queries)]

    def _cut_broker(self, kind: CutKind) -> None:
        if kind is CutKind.BROKER_DIES_DURING:
            self.broker.disk.arm(self.world.rng.randrange(ARMED_BY_CUT_MAX))
        else:
            self.broker.die(Death.KILLED, away_ms=AWAY_MS if kind in (CutKind.BROKER_AWAY, CutKind.BROKER_AWAY_AFTER) else None)

    def _verdict(self) -> list[str]:
        """Read all logs, kill the broker once more, read again and apply the checkers."""
        world, broker = self.world, self.broker
        assert broker.core is not None
        before = self.administrator.with_trimmed_records(read_logs(broker.core))
        broker.die(Death.POWER_LOST if self.knobs.flush_policy == "always" else Death.KILLED)
        world.run(lambda: broker.core is not None, limit_ms=STARTS_WITHIN_MS, waiting_for="the broker does not start again")
        reader = self._committed_reader(broker.partitions, "reader")
        for each in (reader, self.follower):
            each.finish()
        world.run(
            lambda: reader.is_done and self.follower.is_done,
            limit_ms=READ_WITHIN_MS,
            waiting_for="a read_committed reader does not come to the end",
        )
        after = self.administrator.with_trimmed_records(read_logs(broker.core))
        logs, committed = self.administrator.with_observed_start(after), reader.found
        found = [
            *checkers.logs_survive_a_death(before, after),
            *checkers.logs_are_decided(logs),
            *checkers.offsets_are_dense(logs),
            *checkers.sequences_ascend(logs),
            *checkers.readers_agree("reader", committed, logs),
            *checkers.readers_agree("follower", self.follower.found, logs),
        ]
        committed = checkers.with_trimmed_records(committed, logs)
        ledgers = [user.ledger for user in [*self.producers, *self.transformers]]
        removed = checkers.compacted_records(ledgers, logs)
        world.count("records compacted away", len(removed))
        deleted = self.administrator.deleted_topics()
        removed |= {number for topic in deleted for number in topic.numbers()}
        for user in [*self.producers, *self.transformers]:
            found += self._producer_verdict(user, logs, committed, removed, deleted)
        for producer in self.producers:
            found += checkers.offsets_follow_transactions(producer.ledger, committed, self._committed_by(producer), removed)
        for query in self.queries:
            world.count("rows", len(query.rows()))
            found += [*checkers.rows_are_written_once(query, committed), *checkers.rows_are_in_order(query, committed)]
            found += checkers.dead_letter_files_are_complete(query)
        if self.members:
            found += self._group_verdict(self.readers, logs, ledgers)
            recreated = consumer_checkers.restricted_to(self.readers.history, [tp for tp in logs if tp.topic == RECREATED.name])
            found += consumer_checkers.recreated_topics_are_read_from_the_start(
                recreated, [each for _, each in sorted(self._logs_by_creation(logs, deleted), key=itemgetter(0))]
            )
        if self.transformers:
            found += self._group_verdict(self.transformers_group, logs, ledgers)
            made_from = {made: read for user in self.transformers for made, read in user.made_from.items()}
            group = self.transformers_group
            found += consumer_checkers.records_are_transformed_once(group.history, made_from, logs, committed, group.tps)
        if self.knobs.flush_policy == "os":
            found += self._power_loss_verdict()
        world.count("records in logs", sum(len(log.records) for log in logs.values()))
        world.count("records visible", sum(map(len, committed.values())))
        return found

    def _power_loss_verdict(self) -> list[str]:
        """Violations after a power loss: at most unflushed records are lost, no topics, and the broker starts whatever it was writing."""
        broker, core = self.broker, self.broker.core
        assert core is not None
        partitions = {partition.topic_partition: partition for partition in core.topics.partitions()}
        topics = {topic.name: topic.topic_id for topic in core.topics}
        before, flushed = read_logs(core), {tp: flushed_end(each, broker.disk.file_system) for tp, each in partitions.items()}
        broker.die(Death.POWER_LOST)
        self.world.run(lambda: broker.core is not None, limit_ms=STARTS_WITHIN_MS, waiting_for="no start after a loss of power")
        assert broker.core is not None
        after = read_logs(broker.core)
        stayed = {tp: log for tp, log in after.items() if tp in before}
        self.world.count("records lost with the power", sum(len(before[tp].records) - len(log.records) for tp, log in stayed.items()))
        return [
            *checkers.topics_survive_power_loss(topics, {topic.name: topic.topic_id for topic in broker.core.topics}),
            *checkers.power_loss_takes_only_the_unflushed_end(before, stayed, flushed),
        ]

    def _producer_verdict(
        self,
        producer: ProducerUser,
        logs: checkers.Logs,
        committed: checkers.Committed,
        removed: frozenset[int],
        deleted: Sequence[DeletedTopic],
    ) -> list[str]:
        ledger = producer.ledger
        for transaction in ledger.transactions:
            self.world.count(f"transactions {transaction.fate.value}")
        self.world.count("records sent", len(ledger.sent))
        self.world.count("records acknowledged", sum(bool(sent.offsets) for sent in ledger.sent.values()))
        in_order, by_creation = [logs, *(topic.logs for topic in deleted)], self._logs_by_creation(logs, deleted)
        # Records sent to a topic by name may reach the next topic of that name late and out of order. Transactions of version 1 do so too:
        # they use Produce 11, and topic ids begin with version 13.
        is_by_name = producer.is_transactional and (self.knobs.transaction_version == 1)
        if is_by_name or not self.knobs.supports_topic_ids:
            in_order, by_creation = [{tp: log for tp, log in logs.items() if tp.topic != RECREATED.name}], []
        return [
            *checkers.every_record_has_one_outcome(ledger),
            *checkers.outcomes_match_the_logs(ledger, logs, removed, [topic.logs for topic in deleted]),
            *checkers.records_stay_in_their_topic(ledger, by_creation),
            *checkers.only_culprits_are_blamed(ledger, self.broker.accused),
            *(line for each in in_order for line in checkers.order_is_preserved(ledger, each)),
            *checkers.transactions_are_atomic(ledger, committed, removed),
            *checkers.final_records_are_acknowledged(ledger, self.sent_last),
        ]

    def _logs_by_creation(self, logs: checkers.Logs, deleted: Sequence[DeletedTopic]) -> list[tuple[int, checkers.Logs]]:
        """The logs of the topics that had this name one after the other, each with its creation time."""
        core = self.broker.core
        topic = None if core is None else core.topics.get(RECREATED.name)
        if topic is None:
            return []
        now = {tp: log for tp, log in logs.items() if tp.topic == RECREATED.name}
        return [(self.broker.created_ms[topic.topic_id], now), *((topic.created_ms, topic.logs) for topic in deleted)]

    def _committed_by(self, producer: ProducerUser) -> int | None:
        return self._committed(group_of_producer(producer.name), GROUP_PARTITION)

    def _committed(self, group: str, tp: TopicPartition) -> int | None:
        assert self.broker.core is not None
        found = self.broker.core.state.offsets.fetch(group, tp)
        return None if found is None else found.offset

    def _group_verdict(self, group: Group, logs: checkers.Logs, ledgers: Sequence[Ledger]) -> list[str]:
        history = consumer_checkers.restricted_to(group.history, group.tps)
        offsets = consumer_checkers.visible_offsets(history, logs)
        committed = {tp: self._committed(group.name, tp) for tp in group.tps}
        return [
            *consumer_checkers.records_are_delivered_in_order(history, logs, offsets),
            *consumer_checkers.no_aborted_record_is_delivered(history, ledgers),
            *consumer_checkers.every_record_is_delivered(history, offsets, group.tps),
            *consumer_checkers.only_processed_records_are_committed(history, offsets),
            *consumer_checkers.members_start_at_committed_offsets(history),
            *consumer_checkers.members_start_at_the_end(history),
            *consumer_checkers.last_offset_is_committed(history, offsets, committed),
            *consumer_checkers.one_member_per_partition(history),
            *consumer_checkers.fenced_members_commit_nothing(history),
        ]


def _has_nothing_to_do(actor: ProducerUser | Supervisor) -> bool:
    return actor.is_done or (isinstance(actor, ProducerUser) and actor.is_waiting)
