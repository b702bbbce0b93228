"""The TransactionalClientDemo of KIP-1050: count words exactly once, whatever goes wrong.

Each round reads lines of the topic `input`, counts their words, writes the counts to `output` and commits the positions reached, all in
one transaction. What an error asks for is its class: abort and read again (TransactionAbortableException), stop
(InvalidConfigurationException), or start anew with another producer and consumer (everything else).

    python -m examples.transactional_word_count --bootstrap-server localhost:9092

It ends with Ctrl-C, or when everything is read and nothing new has come for --idle-seconds; the sum of all counts of a word in
`output`, read committed, is how often the word was written to `input`.
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
    """One consumer and one producer, from a start of the application to the next."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": GROUP_ID,
                "group.instance.id": MEMBER_ID,  # Started again after a crash it is the same member, and nobody waits for the old one.
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
        """Fence whoever had this transactional id before, and end what it left open."""
        self.producer.init_transactions()
        self.consumer.subscribe([INPUT])

    def round(self, wait_s: float) -> int:
        """One transaction over the lines that are there; how many there were."""
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
        """Whether all lines that there are have been read."""
        assignment = self.consumer.assignment()
        ends = self.consumer.end_offsets(assignment)
        return bool(assignment) and all(self.consumer.position(partition) >= end for partition, end in ends.items())

    def abort(self) -> None:
        """Give the transaction up and read its lines again. This raises no abortable error, so there is no loop here."""
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
    """Bytes that are no UTF-8 are counted as what Python replaces them by: an error would come again at every start."""
    return Counter(word for line in lines for word in (line.value or b"").decode(errors="replace").split())


def positions_after(lines: Iterable[ConsumerRecord]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Where to go on after these lines; of each partition its last line counts."""
    return {line.topic_partition: OffsetAndMetadata(line.offset + 1) for line in lines}


def run(bootstrap_servers: str, idle_s: float) -> int:
    """Count until nothing comes for a while; how many lines there were. Raises InvalidConfigurationException: then somebody has to look."""
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
            # ApplicationRecoverable, and what nobody has classified.
            print(f"restart: {type(error).__name__}: {error}", flush=True)
            application.close()
            application, is_started = WordCount(bootstrap_servers), False
    application.close()
    return total


def seconds(text: str) -> float:
    """A time as it is given on the command line."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # Nor is `nan`.
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 on")
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
        print("interrupted: what was not committed is read again next time", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
