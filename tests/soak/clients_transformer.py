"""The transactional producer: reads PLAIN, writes OUTPUT, and commits how far it read, all in one transaction.

Some transactions are aborted on purpose, some have a culprit, and in some another instance takes the transactional id over before the
commit: none of these may be seen. A process whose place in the group is taken by its successor ends. One whose transactional id is taken
goes on with a new producer: it may have been its predecessor that took it.
"""

from __future__ import annotations

from chaffinch import Consumer, ConsumerRecord, OffsetAndMetadata, Producer, errors
from tests.soak.clients_process import OUTPUT, PLAIN, SESSION_OPTIONS, TRANSFORMERS_GROUP, Life, live
from tests.soak.clients_sender import FUTURE_MS

PLANS = {"commit": 80, "abort": 10, "culprit": 5, "zombie": 5}
"""What becomes of a transaction, and how often."""
TRANSACTION_RECORDS_MAX = 300
PAUSE_SECONDS_MAX = 0.2
FENCED = (errors.ProducerFencedException, errors.InvalidProducerEpochException)


class Transformer:
    """One consumer and one producer, from a start to the next."""

    def __init__(self, life: Life) -> None:
        self._life, self._journal, self._rng = life, life.journal, life.rng
        self._consumer = Consumer(
            life.options(
                group_id=TRANSFORMERS_GROUP,
                group_instance_id="transformer",
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                **SESSION_OPTIONS,
                max_poll_records=TRANSACTION_RECORDS_MAX,
            )
        )
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        return Producer(self._life.options(transactional_id="transformer", linger_ms=2, transaction_timeout_ms=60_000))

    def start(self) -> None:
        self._producer.init_transactions()
        self._consumer.subscribe([PLAIN])

    def take_back(self) -> None:
        """The transactional id, with what the group has read as the place to go on from."""
        self._producer.close(timeout=20)
        self._producer = self._new_producer()
        self._producer.init_transactions()
        self._rewind()

    def is_at_end(self) -> bool:
        assignment = self._consumer.assignment()
        ends = self._consumer.end_offsets(assignment)
        return bool(assignment) and all(self._consumer.position(partition) >= end for partition, end in ends.items())

    def transaction(self, name: str) -> bool:
        """One, if there is something to read."""
        records = self._consumer.poll(0.5)
        if not records:
            return False
        plan = self._rng.choices(list(PLANS), list(PLANS.values()))[0]
        self._journal.write("begun", name, len(records), plan)
        producer = self._producer
        try:
            producer.begin_transaction()
            for index, record in enumerate(records):
                assert record.value is not None
                producer.send(OUTPUT, _value(name, index, record), key=record.value.partition(b":")[0])
            if plan == "culprit":
                producer.send(OUTPUT, b"culprit of " + name.encode(), timestamp_ms=FUTURE_MS)
            tps = {record.topic_partition: OffsetAndMetadata(record.offset + 1) for record in records}
            producer.send_offsets_to_transaction(tps, self._consumer.group_metadata())
            self._end(plan, name)
        except errors.InvalidTimestampException:
            if plan != "culprit":
                raise
            self._abort(name)
        except errors.TransactionAbortableException as error:
            self._journal.write("error", f"{type(error).__name__}: {error}"[:300])
            self._abort(name)
        return True

    def _end(self, plan: str, name: str) -> None:
        if plan == "abort":
            self._abort(name)
        elif plan == "culprit":
            self._commit()
            self._journal.write("fault", f"transaction {name} was committed with a culprit in it")
        elif plan == "zombie":
            zombie, self._producer = self._producer, self._new_producer()
            self._producer.init_transactions()
            try:
                zombie.commit_transaction()
                self._journal.write("fault", f"transaction {name} was committed by a fenced producer")
            except FENCED:
                pass
            zombie.close()
            self._journal.write("ended", name, "aborted")
            self._rewind()
        else:
            self._commit()
            self._journal.write("ended", name, "committed")

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction()
                return
            except errors.TimeoutException as error:
                self._journal.write("error", f"commit: {error}"[:300])

    def _abort(self, name: str) -> None:
        while True:
            try:
                self._producer.abort_transaction()
                break
            except errors.TimeoutException as error:
                self._journal.write("error", f"abort: {error}"[:300])
        self._journal.write("ended", name, "aborted")
        self._rewind()

    def _rewind(self) -> None:
        """Read again from where the group has committed."""
        for tp, found in self._consumer.committed(self._consumer.assignment()).items():
            if found is None:
                self._consumer.seek_to_beginning([tp])
            else:
                self._consumer.seek(tp, found.offset)

    def close(self) -> None:
        self._producer.close(timeout=20)
        self._consumer.close(timeout=20)


def _value(name: str, index: int, record: ConsumerRecord) -> bytes:
    return f"{name}|{index}|{record.partition}|{record.offset}".encode()


def run(life: Life) -> None:
    transformer, is_started, is_fenced, number = Transformer(life), False, False, 0
    while True:
        try:
            if not is_started:
                transformer.start()
                is_started = True
            if is_fenced:
                transformer.take_back()
                is_fenced = False
            number += 1
            if not transformer.transaction(f"{life.number}.{number}") and life.stopping.is_set() and transformer.is_at_end():
                break
        except errors.InvalidConfigurationException:
            raise
        except FENCED as error:
            life.journal.write("fenced", f"{type(error).__name__}: {error}"[:300])
            is_fenced = True
        except errors.FencedInstanceIdException as error:
            life.journal.write("fenced", f"{type(error).__name__}: {error}"[:300])
            break
        except errors.KafkaException as error:
            life.journal.write("error", f"restart: {type(error).__name__}: {error}"[:300])
            transformer.close()
            transformer, is_started, is_fenced = Transformer(life), False, False
        life.pause(PAUSE_SECONDS_MAX)
    transformer.close()


if __name__ == "__main__":
    live(run)
