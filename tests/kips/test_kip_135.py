"""KIP-135: a null key sent to a compacted topic is an error of its own, which is not retried.

One line per record; the code is INVALID_COMPACTION_KEY, which travels as 87 with the record listed (`apache`) or as 45 (`kip`).
"""

import pytest

from chaffinch.errors import codes, exceptions
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import encode_control_batch
from chaffinch.records.compression import Compression
from chaffinch.records.old_formats.message_set import read_message_set
from chaffinch.records.validation import Accepted, Origin, Rejected, ValidationPolicy, validate
from chaffinch.records.validation_rules import CODECS
from tests.kips.rule_table import written
from tests.support.raw_batches import NOW_MS, raw_batch, record, view
from tests.support.validated_sets import validate_set

COMPACTED = ValidationPolicy(topic_partition=TopicPartition("accounts", 3), is_compacted=True)
PLAIN = ValidationPolicy(topic_partition=TopicPartition("accounts", 3), is_compacted=False)

# (key, value, policy, refused?)
TABLE = [
    (None, b"value", COMPACTED, True),
    (None, b"", COMPACTED, True),
    (None, None, COMPACTED, True),
    (b"", b"value", COMPACTED, False),
    (b"", None, COMPACTED, False),
    (b"key", b"value", COMPACTED, False),
    (b"key", None, COMPACTED, False),  # A tombstone.
    (None, b"value", PLAIN, False),
    (None, None, PLAIN, False),
]


@pytest.mark.parametrize(("record_format", "codec"), [(number, codec) for number, codecs in CODECS.items() for codec in codecs])
@pytest.mark.parametrize(("key", "value", "policy", "is_refused"), TABLE)
def test_null_key_is_refused_on_compacted_topics(
    key: bytes | None, value: bytes | None, policy: ValidationPolicy, is_refused: bool, record_format: int, codec: Compression
) -> None:
    """In every format and under every codec of it."""
    data = written(record_format, codec, ({}, {"key": key, "value": value}, {}), {})
    if record_format == 2:
        verdict = validate(view(data), policy, Origin.CLIENT, NOW_MS)
    else:
        verdict = validate_set(read_message_set(data), policy, NOW_MS)
    assert isinstance(verdict, Rejected if is_refused else Accepted)
    if isinstance(verdict, Rejected):
        assert verdict.code is codes.INVALID_COMPACTION_KEY
        assert [(culprit.batch_index, culprit.code) for culprit in verdict.culprits] == [(1, codes.INVALID_COMPACTION_KEY)]
        assert verdict.counts == (("NoKeyCompactedTopicRecordsPerSec", 1),)


@pytest.mark.parametrize(("numbering", "number"), [("apache", 87), ("kip", 45)])
def test_response_code_is_read_back_with_its_culprits(numbering: codes.Numbering, number: int) -> None:
    verdict = validate(view(raw_batch([record(0, key=None)])), COMPACTED, Origin.CLIENT, NOW_MS)
    assert isinstance(verdict, Rejected)
    code, culprits = verdict.response_errors(numbering)
    sent = code.wire(numbering)
    assert (sent, len(culprits)) == (number, 1)
    assert verdict.message == "record 0 of 1 for accounts-3 rejected: null key, the topic is compacted and needs one"
    expected = codes.INVALID_COMPACTION_KEY if numbering == "kip" else codes.INVALID_RECORD
    assert codes.by_number(sent, numbering, has_culprits=True) == expected


def test_exception_is_not_retriable_and_names_the_key() -> None:
    error = exceptions.exception_for(codes.INVALID_COMPACTION_KEY)
    assert isinstance(error, exceptions.InvalidCompactionKeyException)
    assert isinstance(error, exceptions.ApiException)
    assert not isinstance(error, exceptions.RetriableException)
    assert not codes.INVALID_COMPACTION_KEY.is_retriable
    assert "key" in str(error)


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_markers_are_accepted_on_compacted_topics(is_commit: bool) -> None:
    marker = encode_control_batch(is_commit, ProducerIdentity(7, 0), 0, NOW_MS)
    assert isinstance(validate(view(marker), COMPACTED, Origin.COORDINATOR, NOW_MS), Accepted)
