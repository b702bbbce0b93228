"""The TransactionalClientDemo of KIP-1050: counts words exactly once, despite all errors.

Each round reads lines of the topic `input`, counts their words, writes the counts to `output` and commits the offsets, all in one
transaction. The class of an error determines what to do: abort and read again (TransactionAbortableException), stop
(InvalidConfigurationException), or start again with a new producer and consumer (all others).

    python -m examples.transactional_word_count --bootstrap-server localhost:9092

It ends with Ctrl-C, or when everything is read and --idle-seconds pass without new lines. The sum of all committed counts of a word in
`output` equals the number of times it was written to `input`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from chaffinch import Consumer, ConsumerRecord, OffsetAndMetadata, Producer, TopicPartition, errors

GROUP_ID, INPUT, OUTPUT = "word-count", "input", "output"
TRANSACTIONAL_ID = MEMBER_ID = "word-count-1"


class WordCount:
    """One consumer and one producer, used until the next restart of the application."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP_ID,
                "group.instance.id": MEMBER_ID,  # After a crash it is the same member, so the group need not wait for the session timeout.
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "max.poll.records": 100,
            }
        )
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": TRANSACTIONAL_ID,
                "delivery.timeout.ms": 30_000,
                "request.timeout.ms": 10_000,
            }
        )

    def start(self) -> None:
        """Fence the previous producer of this transactional id and end its open transaction."""
        self.producer.init_transactions()
        self.consumer.subscribe([INPUT])

    def round(self, wait_s: float) -> int:
        """One transaction over the available lines. Returns their number."""
        lines = self.consumer.poll(wait_s)
        if not lines:
            return 0
        self.producer.begin_transaction()
        for word, count in count_words(lines).items():
            self.producer.send(OUTPUT, str(count), key=word)
        self.producer.send_offsets_to_transaction(positions_after(lines), self.consumer.group_metadata())
        self.producer.commit_transaction()
        return len(lines)

    def is_at_end(self) -> bool:
        """Whether all lines have been read."""
        assignment = self.consumer.assignment()
        ends = self.consumer.end_offsets(assignment)
        return bool(assignment) and all(self.consumer.position(partition) >= end for partition, end in ends.items())

    def abort(self) -> None:
        """Abort the transaction and read its lines again. This raises no abortable error, so it needs no loop."""
        self.producer.abort_transaction()
        assignment = self.consumer.assignment()
        committed = self.consumer.committed(assignment)
        for partition in assignment:
            found = committed.get(partition)
            if found is None:
                self.consumer.seek_to_beginning([partition])
            else:
                self.consumer.seek(partition, found.offset)

    def close(self) -> None:
        self.producer.close(timeout=5)
        self.consumer.close(timeout=5)


def count_words(lines: Iterable[ConsumerRecord]) -> Counter[str]:
    """Count words. Bytes that are not UTF-8 are replaced: an error would occur again after every restart."""
    return Counter(word for line in lines for word in (line.value or b"").decode(errors="replace").split())


def positions_after(lines: Iterable[ConsumerRecord]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets after these lines: the last line of each partition counts."""
    return {line.topic_partition: OffsetAndMetadata(line.offset + 1) for line in lines}


def run(bootstrap_servers: str, idle_s: float) -> int:
    """Count until no lines come for `idle_s`. Returns their number. Raises InvalidConfigurationException, which an operator must fix."""
    application = WordCount(bootstrap_servers)
    is_started = False
    total = 0
    while True:
        try:
            try:
                if not is_started:
                    application.start()
                    is_started = True
                count = application.round(idle_s)
                total += count
                if count:
                    print(f"committed {count} lines", flush=True)
                elif application.is_at_end():
                    break
            except errors.TransactionAbortableException as error:
                print(f"abort: {error}", flush=True)
                application.abort()
        except (errors.InvalidConfigurationException, KeyboardInterrupt):
            application.close()
            raise
        except errors.KafkaException as error:
            # ApplicationRecoverable and unclassified errors.
            print(f"restart: {type(error).__name__}: {error}", flush=True)
            application.close()
            application, is_started = WordCount(bootstrap_servers), False
    application.close()
    return total


def seconds(text: str) -> float:
    """Parse seconds from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # Refuses `nan` as well.
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of at least 0")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count words exactly once.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--idle-seconds", type=seconds, default=60.0)
    chosen = parser.parse_args(arguments)
    try:
        total = run(chosen.bootstrap_server, chosen.idle_seconds)
        print(f"committed {total} lines in all", flush=True)
    except (errors.InvalidConfigurationException, errors.ConfigException) as error:
        print(f"stop: {type(error).__name__}: {error}", flush=True)
        return 1
    except KeyboardInterrupt:
        print("interrupted: uncommitted records are read again next time", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
