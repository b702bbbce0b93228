"""Parameters of a world: how rough it is and which actors it has. Derived from its seed, or fixed by a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaffinch.producer.core.batches.in_flight import BROKER_REMEMBERED_BATCHES
from simulation.nemesis import FaultSchedule
from simulation.network import CALM, NetworkFaults
from simulation.queries.cuts import Cut
from simulation.report import REQUIRED_RECORDS
from simulation.world import World

VERSION_2_EVERY: Final = 4
VERSION_FOR: Final = 4
LYING_EVERY: Final = 5
FORGETFUL_EVERY: Final = 3
CLOCK_EVERY: Final = 7
HANDLER_EVERY: Final = 3
RECREATE_EVERY: Final = 4
TRIM_EVERY: Final = 3
BY_NAME_EVERY: Final = 20
TABLES_EVERY: Final = 6
LATEST_EVERY: Final = 6
TWINS_EVERY: Final = 5
ABORTING_EVERY: Final = 5
EARLY_CLOSE_EVERY: Final = 3
INLINE_SEND_OF: Final = 7
INLINE_SEND: Final = (1, 4)
"""Features that depend on the seed itself, not on the generator, so that other worlds keep their random choices. One world in N has:
- VERSION_2_EVERY: a second producer of transaction version 2.
- VERSION_FOR: this many seeds in a row use transaction version 1, the next ones version 2.
- LYING_EVERY: a broker with wrong error responses. FORGETFUL_EVERY: a broker that forgets all but the last batch of a producer.
- CLOCK_EVERY: a wall clock that is set. HANDLER_EVERY: producers with exception handlers.
- RECREATE_EVERY: a topic that is deleted and recreated. BY_NAME_EVERY: the same, with brokers that know topics by name only.
- TRIM_EVERY: logs that lose their oldest records. TABLES_EVERY: a producer of tables with many culprits.
- LATEST_EVERY: readers that start at the end. TWINS_EVERY: two processes with one group.instance.id.
- ABORTING_EVERY: transformers that often abort and use short time limits.
- EARLY_CLOSE_EVERY: transactional producers that are closed during a commit.
- INLINE_SEND: residues modulo INLINE_SEND_OF of the worlds whose producers use inline send.
"""
RECORDS_MIN, RECORDS_MAX = 255, 280
"""Records of all writers together: producers, queries and transformers (about). Some are never sent, because their transaction could not
begin."""
MADE_BY_TRANSFORMERS: Final = 50
CONSUMERS: Final = (*((0, 0),) * 10, (1, 0), (3, 0), (0, 1), (0, 2), (2, 1), (1, 1))
"""(readers, transformers). Three worlds in eight have some; they take twice as long as others."""
SEEK_TIMEOUT_MS: Final = 8_000
SHORT_SEEK_MS: Final = 20
"""A single response on a slow network may take longer."""
FIRST_DEATH_MS_MAX: Final = 700
"""No world can be done before this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Parameters of a world. `of` draws them from its generator; a caller may fix any of them."""

    node_count: int = 1
    flush_policy: str = "os"
    plain_count: int = 0
    """Number of idempotent producers."""
    transactional_count: int = 0
    version_2_count: int = 0
    """Producers that use the simple independent implementation of transaction version 2, whatever version the brokers announce."""
    transaction_version: int = 1
    """Version that the brokers announce for the cluster and that our producers therefore use."""
    producer_records: int = 100
    """Records of each producer."""
    required_records: int = 0
    """Minimum number of records in total; missing ones are written after all actors are done."""
    in_flight_max: int = BROKER_REMEMBERED_BATCHES
    """Minimum number of requests in flight per broker of each producer; with 1 some producers still use five."""
    query_count: int = 0
    query_rows: int = 60
    query_batches: int = 3
    query_may_be_empty: bool = True
    """Whether one batch may have no rows."""
    query_is_stream: bool = True
    """False: a batch write with an idempotency token, which is a single batch."""
    query_has_checkpoint: bool = True
    """Whether the sink knows the query's checkpoint."""
    query_has_handler: bool = False
    reader_count: int = 0
    """Members of a consumer group."""
    reads_committed: bool = True
    """Whether that group reads with isolation.level=read_committed."""
    reads_latest: bool = False
    """Whether its members start at the end if no offset is committed. Not combined with topics that are recreated or trimmed."""
    transformer_count: int = 0
    """Programs that consume, transform and produce, in a group of their own."""
    abort_share: float = 0.0
    """Share of their transactions that they abort without an error."""
    seek_timeout_ms: int = SEEK_TIMEOUT_MS
    """How long they wait for committed offsets after an abort."""
    validation_first_share: float = 0.0
    """Share of repeated batches that are refused with a culprit, as by a broker whose limits have changed."""
    lying_share: float = 0.0
    """Share of refusals with wrong culprits. Some refused batches get only retriable errors."""
    is_forgetful: bool = False
    """A starting broker remembers one batch of each producer, not five."""
    has_handler: bool = False
    """Whether producers have an exception handler. It drops most rejected records and retries records of unknown topics."""
    has_tables: bool = False
    """Whether the first idempotent producer writes tables of several batches in which some records lack a key."""
    closes_early: bool = False
    """Whether transactional producers are sometimes closed, with a time limit, while a commit is in progress."""
    has_inline_send: bool = False
    """Whether callers of idempotent producers use inline send if nothing is queued before the record."""
    bad_share: float = 0.04
    value_bytes_max: int = 400
    trouble_ms: int = 8_000
    """Minimum duration of the faulty phase in ms; up to three times that while work is left."""
    quiet_limit_ms: int = 45_000
    """Limit for the quiet phase: twice the longest transaction timeout, ten times what worlds need."""
    supports_topic_ids: bool = True
    """Whether brokers serve the version of Produce that identifies topics by id."""
    lost_response_at: int = 0
    """Number, from 1, of a Produce response that is always lost; 0 for none."""
    faults: NetworkFaults = CALM
    fault_schedule: FaultSchedule = field(default_factory=FaultSchedule)
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def of(cls, world: World, overrides: Mapping[str, Any]) -> Knobs:
        """Random knobs for this world. Some worlds are rough and some nearly calm: calm ones reach states that rough ones never do."""
        rng = world.rng
        flush_policy = rng.choice(("os", "always"))
        roughness = rng.choice((0.2, 1.0, 1.0, 2.0))
        plain_count, transactional_count = rng.choice(((1, 0), (1, 1), (1, 1), (1, 2), (2, 0), (2, 1)))
        version_2_count = int(world.seed % VERSION_2_EVERY == VERSION_2_EVERY - 1)
        producer_count = plain_count + transactional_count + version_2_count
        reader_count, transformer_count = rng.choice(CONSUMERS)
        query_count, query_rows = rng.choice((0, 0, 1)), rng.randint(40, 120)
        record_count = rng.randint(RECORDS_MIN, RECORDS_MAX) - query_count * query_rows - MADE_BY_TRANSFORMERS * (transformer_count > 0)
        knobs = cls(
            node_count=rng.choice((1, 1, 2, 3)),
            flush_policy=flush_policy,
            plain_count=plain_count,
            transactional_count=transactional_count,
            version_2_count=version_2_count,
            transaction_version=1 + world.seed // VERSION_FOR % 2,
            producer_records=-(-record_count // producer_count),
            required_records=REQUIRED_RECORDS,
            in_flight_max=rng.choice((1, BROKER_REMEMBERED_BATCHES)),
            query_count=query_count,
            query_rows=query_rows,
            query_has_checkpoint=rng.random() < 0.7,
            reader_count=reader_count,
            reads_committed=rng.random() < 0.7,
            reads_latest=world.seed % LATEST_EVERY == 4,
            transformer_count=transformer_count,
            abort_share=0.2 * (world.seed % ABORTING_EVERY == 3),
            seek_timeout_ms=SHORT_SEEK_MS if world.seed % ABORTING_EVERY == 3 else SEEK_TIMEOUT_MS,
            supports_topic_ids=world.seed % BY_NAME_EVERY != RECREATE_EVERY + 1,
            lost_response_at=rng.randint(1, 12),
            validation_first_share=rng.choice((0.0, 0.0, 0.3)),
            lying_share=0.5 * (world.seed % LYING_EVERY == LYING_EVERY - 1),
            is_forgetful=world.seed % FORGETFUL_EVERY == FORGETFUL_EVERY - 1,
            has_handler=world.seed % HANDLER_EVERY == 1,
            has_tables=world.seed % TABLES_EVERY == 2,
            closes_early=world.seed % EARLY_CLOSE_EVERY == 1,
            has_inline_send=world.seed % INLINE_SEND_OF in INLINE_SEND,
            bad_share=rng.choice((0.0, 0.03, 0.1)),
            value_bytes_max=rng.choice((100, 400, 400, 400, 2_000, 2_000, 60_000)),
            faults=NetworkFaults(
                latency_max_ms=rng.choice((1, 4, 20)),
                slow_share=rng.choice((0.01, 0.01, 0.06)) * roughness * rng.random(),
                cut_share=0.25 * roughness * rng.random(),
                silent_share=0.1 * roughness * rng.random(),
                lost_response_share=0.04 * roughness * rng.random(),
                unreachable_share=0.05 * roughness * rng.random(),
            ),
            fault_schedule=FaultSchedule(
                broker_death_ms=int(rng.choice((600, 1_500, 4_000)) / roughness),
                client_death_ms=rng.choice((0, 3_000, 8_000)),
                zombie_ms=rng.choice((0, 0, 2_000)),
                full_disk_ms=rng.choice((0, 0, 1_500, 5_000)),
                clock_step_ms=1_000 * (world.seed % CLOCK_EVERY == CLOCK_EVERY - 1),
                node_stop_ms=rng.choice((0, 0, 1_500)),
                recreate_ms=700 * (world.seed % RECREATE_EVERY == 1),
                trim_ms=1_200 * (world.seed % TRIM_EVERY == 0),
                twin_ms=1_500 * (world.seed % TWINS_EVERY == 2),
                first_death_ms=rng.randint(100, FIRST_DEATH_MS_MAX),
                power_loss_share=0.4 if flush_policy == "always" else 0.0,
            ),
        )
        return replace(knobs, **overrides)
