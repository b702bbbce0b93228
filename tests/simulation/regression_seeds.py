"""Regression seeds: (the behaviour that was violated, the seed, the fixed knobs).

When the simulation changes, these become ordinary worlds: each defect is also broken again by hand in `test_*mutations.py`.
"""

from __future__ import annotations

from typing import Any, Final

from simulation.nemesis import FaultSchedule
from simulation.network import NetworkFaults
from tests.simulation.mutation import NO_ACTORS, RECREATED

ROUGH = NetworkFaults(cut_share=0.4, lost_response_share=0.08, slow_share=0.01, silent_share=0.05)
POWER = FaultSchedule(broker_death_ms=400, power_loss_share=0.8)
PLAIN: dict[str, Any] = {**NO_ACTORS, "plain_count": 2, "faults": ROUGH, "bad_share": 0.1}
TRANSACTIONAL: dict[str, Any] = {**NO_ACTORS, "transactional_count": 2, "bad_share": 0.03}
QUERY: dict[str, Any] = {**NO_ACTORS, "query_count": 1, "bad_share": 0.3}
VERSION_2: dict[str, Any] = {**NO_ACTORS, "version_2_count": 2, "bad_share": 0.03}

SLOW = NetworkFaults(latency_max_ms=20, slow_share=0.08)
LOSSY = NetworkFaults(latency_max_ms=30, lost_response_share=0.1)
ALWAYS = {"flush_policy": "always"}
READERS: dict[str, Any] = {**NO_ACTORS, "plain_count": 1, "transactional_count": 1, "reader_count": 2, "faults": LOSSY, "trouble_ms": 6_000}
TRANSFORMERS: dict[str, Any] = {**NO_ACTORS, "plain_count": 1, "transformer_count": 2, "faults": LOSSY, "trouble_ms": 6_000}
COMING_AND_GOING = FaultSchedule(broker_death_ms=2_000, client_death_ms=1_000, zombie_ms=1_500)
MOVING = FaultSchedule(broker_death_ms=1_500, client_death_ms=2_000, node_stop_ms=800)
OVERTAKEN: dict[str, Any] = {
    **PLAIN,
    "node_count": 3,
    "in_flight_max": 5,
    "producer_records": 150,
    "bad_share": 0.2,
    "faults": NetworkFaults(latency_max_ms=20, slow_share=0.06),
    "fault_schedule": FaultSchedule(client_death_ms=1_500, node_stop_ms=700),
}
RECREATED_ROUGHLY: dict[str, Any] = {**RECREATED, "in_flight_max": 5, "bad_share": 0.2}
RECREATED_BY_NAME: dict[str, Any] = {**RECREATED_ROUGHLY, "supports_topic_ids": False}

REGRESSIONS: Final[list[tuple[str, int, dict[str, Any]]]] = [
    (
        "answers to an abandoned attempt are not taken for those of the next",
        0,
        {**QUERY, "faults": LOSSY, "fault_schedule": FaultSchedule()},
    ),
    ("markers are synced before the completion", 7, {**QUERY, **ALWAYS, "faults": ROUGH, "fault_schedule": POWER, "query_rows": 120}),
    ("markers are synced before the completion", 60, {}),
    ("offsets are synced before the completion", 109, {}),
    (
        "what a killed broker left is synced",
        12,
        {**PLAIN, **ALWAYS, "fault_schedule": FaultSchedule(broker_death_ms=300, power_loss_share=0.5)},
    ),
    ("what a killed broker left is synced", 99, {"version_2_count": 0}),
    ("a null key is reported as such when the topic cannot be described", 11, {"version_2_count": 0}),
    ("no record is blamed for the size of its batch", 110, {}),
    (
        "late requests are not taken for those of the next transaction",
        2,
        {**TRANSACTIONAL, "faults": SLOW, "fault_schedule": FaultSchedule()},
    ),
    ("late requests are not taken for those of the next transaction", 1537, {}),
    ("late requests are not taken for those of the next transaction", 1793, {}),
    (
        "a part of a transaction is known before its first bytes are stored",
        0,
        {**VERSION_2, **ALWAYS, "transactional_count": 1, "fault_schedule": POWER},
    ),
    ("the sender sleeps while all brokers have to wait", 0, {**PLAIN, "fault_schedule": FaultSchedule(broker_death_ms=500)}),
    ("a member that was lost writes in transactions as who it was", 11, {**TRANSFORMERS, "fault_schedule": COMING_AND_GOING}),
    ("leaders find the end of an epoch in small logs", 0, {**READERS, "node_count": 3, "fault_schedule": MOVING}),
    ("leaders find the end of an epoch in small logs", 118, {"transformer_count": 2, "reader_count": 2}),
    ("commits of an earlier generation are given up", 119, {"transformer_count": 2, "reader_count": 2}),
    ("a leader that lost the partition may have written the batch", 90, OVERTAKEN),
    ("late attempts are kept out by a new epoch", 121, OVERTAKEN),
    ("nothing overtakes what came back in a new topic of the name", 6, RECREATED_ROUGHLY),
    ("nothing overtakes what came back in a new topic of the name", 67, RECREATED_ROUGHLY),
    ("nothing is stored twice in a new topic of the name", 45, RECREATED_BY_NAME),
    ("producer state outlives its records", 315, {"reader_count": 2}),
    ("no batch of a table is larger than all the memory", 1034, {}),
    ("producer state outlives records that are deleted", 7000446, {}),
    ("worlds of large values come to their end", 5001014, {}),
    ("partitions of a static member that died before it gave them up get to others", 2001002, {}),
    ("what a topic had is not read on in the next one of its name", 3000833, {}),
    ("no earlier commit comes after the last one", 2002165, {}),
    ("a start is not durable whose name a process died of", 1635, {}),
    ("what is sent in transactions goes to a topic by its name", 1689, {}),
    ("what arrives late is there before readers go", 5574, {}),
    ("data written during a start is synced before it is read", 6444, {}),
    ("the number of a generation that ended before SyncGroup is used again", 13237, {}),
    ("a commit of a connection given up is written after the last", 14702, {}),
    ("batches are known by topic ids too", 39, {**READERS, "node_count": 3, "fault_schedule": MOVING}),
    ("a process killed with inline send enabled is not woken by a new connection", 22716, {}),
    ("sequences that others have passed while a handler ran are not used again", 67765, {}),
    ("a commit without an answer of offsets, and of a record that was dropped", 16573, {"transaction_version": 2}),
    ("a log does not start beyond what is on disk", 49284, {"transaction_version": 2}),
    ("an end that was asked for by who had the partition before is not begun at", 80133, {}),
    ("a write that is interrupted while its answer is read is not sent to the next topic", 2237, {}),
]
