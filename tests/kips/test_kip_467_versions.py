"""Codes that a client of each Produce version gets, under both numberings: the table of `docs/explanation/kips/467.md`, compared with
the wire.

Below version 8 there is no room for culprits and texts, and the KIP's two errors become INVALID_REQUEST: never CORRUPT_MESSAGE, which
would be sent again. The number of each culprit (tag 1467) travels from version 9 on, and to our own client only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.produce import CULPRIT_CODE_TAG
from chaffinch.records.compression import Compression
from tests.broker.batches import NOW_MS, batch_of, changed
from tests.broker.core_client import Cluster
from tools import kip_tables

HOUR_MS = 3_600_000
PRODUCER = ProducerIdentity(7, 0)
COUNT = 57
NUMBERINGS = ("apache", "kip")
GOOD = batch_of(b"a", b"b")

# what is sent, topic, numbers below version 8 under (apache, kip), from it on, culprits under (apache, kip), number of each
_Numbers = tuple[int, int]
EVENTS: Mapping[str, tuple[bytes | bytearray, Mapping[str, Any], _Numbers, _Numbers, tuple[list[int], list[int]], dict[int, int]]] = {
    "null key": (batch_of(b"a", b"b", keys=[b"k", None]), {"cleanup_policy": "compact"}, (42, 42), (87, 45), ([1], [1]), {1: 45}),
    "wrong count": (changed(GOOD, COUNT, (7).to_bytes(4, "big")), {}, (42, 42), (87, 85), ([], []), {}),
    "timestamp": (batch_of(b"a", b"b", timestamps=[NOW_MS + 2 * HOUR_MS, NOW_MS]), {}, (32, 32), (32, 32), ([0], [0]), {0: 32}),
    "null key, then timestamp": (
        batch_of(b"a", b"b", keys=[None, b"k"], timestamps=[NOW_MS, NOW_MS + 2 * HOUR_MS]),
        {"cleanup_policy": "compact"},
        (32, 42),
        (32, 45),
        ([0, 1], [0]),
        {0: 45, 1: 32},
    ),
    "checksum": (changed(GOOD, 70, b"\xff", fix_crc=False), {}, (2, 2), (2, 2), ([], []), {}),
    "too large": (batch_of(bytes(200)), {"max_message_bytes": "100"}, (10, 10), (10, 10), ([], []), {}),
    "replication factor": (GOOD, {"min_insync_replicas": "2"}, (40, 89), (40, 89), ([], []), {}),
    "sequence": (batch_of(b"a", identity=PRODUCER, sequence=5), {}, (45, 45), (45, 45), ([], []), {}),
    "old message format": (
        batch_of(b"a", identity=PRODUCER, sequence=0),
        {"message_format_version": "0.10"},
        (43, 43),
        (43, 43),
        ([], []),
        {},
    ),
}


def answer_to(name: str, version: int, numbering: str, software: str = "chaffinch") -> Any:
    batch, topic = EVENTS[name][:2]
    cluster = Cluster({"error.numbering": numbering})
    cluster.topic("orders", **topic)
    client = cluster.client(software=software)
    if name == "sequence":
        client.produce("orders", batch_of(b"a", identity=PRODUCER, sequence=0))
    return client.produce("orders", batch, version=version)


@pytest.mark.parametrize("numbering", NUMBERINGS)
@pytest.mark.parametrize("version", APIS[0].served)
@pytest.mark.parametrize("name", EVENTS)
def test_event_has_code_culprits_and_text_per_version(name: str, version: int, numbering: str) -> None:
    _, _, old_numbers, numbers, culprits, culprit_numbers = EVENTS[name]
    answer = answer_to(name, version, numbering)
    at = NUMBERINGS.index(numbering)
    expected = culprits[at] if version >= 8 else []
    assert answer.error_code == (numbers if version >= 8 else old_numbers)[at]
    assert [error.batch_index for error in answer.record_errors] == expected
    assert bool(answer.error_message) == (version >= 8)
    assert [error.chaffinch_error_code for error in answer.record_errors] == [
        culprit_numbers[index] if version >= 9 else None for index in expected
    ]


@pytest.mark.parametrize("software", ["librdkafka", "apache-kafka-java", ""])
def test_other_clients_receive_no_codes_of_culprits(software: str) -> None:
    answer = answer_to("null key", 9, "apache", software)
    assert [(error.batch_index, error.chaffinch_error_code) for error in answer.record_errors] == [(1, None)]


@pytest.mark.parametrize(("numbering", "announced"), [("apache", []), ("kip", [("chaffinch.error.numbering", 1, 1)])])
@pytest.mark.parametrize("version", [3, 4])
def test_numbering_is_announced_as_a_feature(numbering: str, announced: list[Any], version: int) -> None:
    """In ApiVersions, as a supported feature: otherwise a client cannot know which 45 is meant."""
    cluster = Cluster({"error.numbering": numbering})
    client = cluster.client()
    answer = client.ask(client.connection.api_versions_request(), version)
    features = [(feature.name, feature.min_version, feature.max_version) for feature in answer.supported_features]
    assert [feature for feature in features if feature[0] == "chaffinch.error.numbering"] == announced


def test_zstd_is_accepted_since_version_7() -> None:
    """zstd is the one event that depends on the version itself (KIP-110)."""
    for version, code in ((6, codes.UNSUPPORTED_COMPRESSION_TYPE), (7, codes.NONE)):
        cluster = Cluster()
        cluster.topic("orders")
        assert cluster.client().produce("orders", batch_of(b"a", compression=Compression.ZSTD), version=version).error_code == code.number


def test_printed_table_equals_the_events() -> None:
    """Rows of `docs/explanation/kips/467.md` for each event above: versions, both numbers, culprits, text, tag."""
    printed = {(row[0], row[1]): row[2:] for row in kip_tables.responses_by_version()}
    for name, described in (("null key", "a record without key on a compacted topic"), ("replication factor", "min.insync.replicas")):
        _, _, old_numbers, numbers, culprits, culprit_numbers = EVENTS[name]
        (event,) = {key[0] for key in printed if key[0].startswith(described)}
        number = str(next(iter(culprit_numbers.values()))) if culprit_numbers else ""
        names = "yes" if culprits[0] else ""
        ranges = {key[1]: value for key, value in printed.items() if key[0] == event}
        assert ranges["0 to 7"] == [*map(str, old_numbers), "", "", ""]
        assert ranges["9 to 13" if culprit_numbers else "8 to 13"] == [*map(str, numbers), names, "yes", number]
    assert CULPRIT_CODE_TAG == 1467
