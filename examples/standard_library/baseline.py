"""Baseline: the same rows sent with confluent-kafka's producer, with the number of lost rows and of wrongly failed ones."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from examples.standard_library.inputs import SourceFile
from examples.standard_library.verification import header, messages, reason
from examples.standard_library.workspace import BASELINE_TOPIC, MESSAGE_BYTES_MAX

FLUSH_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Counts of files. `wrongly_blamed` files failed with an error although they are valid."""

    legal: int
    written: int
    lost: int
    refused: int
    wrongly_blamed: int
    example: str


def produce(bootstrap_servers: str, files: list[SourceFile], root: Path) -> dict[str, str]:
    """Send every file; returns path -> error of those whose delivery failed.

    Idempotent, with the topic's size limit as its documentation advises; defaults otherwise.
    """
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "message.max.bytes": MESSAGE_BYTES_MAX})
    failed: dict[str, str] = {}

    def note(path: str, error: object, _: object = None) -> None:
        if error is not None:
            failed[path] = str(error)

    for file in files:
        value, key = (root / file.path).read_bytes(), None if file.key is None else file.key.encode()
        headers: list[tuple[str, str | bytes | None]] = [("path", file.path.encode())]
        try:
            producer.produce(BASELINE_TOPIC, value, key, on_delivery=partial(note, file.path), timestamp=file.modified_ms, headers=headers)
        except (KafkaException, BufferError) as error:
            note(file.path, error)
        producer.poll(0)
    if producer.flush(FLUSH_SECONDS):
        raise TimeoutError(f"confluent-kafka still had undelivered messages after {FLUSH_SECONDS:.0f} s")
    return failed


def losses(bootstrap_servers: str, files: list[SourceFile], root: Path) -> Losses:
    failed = produce(bootstrap_servers, files, root)
    written = {header(message, "path") for message in messages(bootstrap_servers, BASELINE_TOPIC)}
    legal = [file.path for file in files if reason(file) is None]
    blamed = [path for path in legal if path in failed]
    return Losses(
        legal=len(legal),
        written=sum(path in written for path in legal),
        lost=sum(path not in written for path in legal),
        refused=len(failed),
        wrongly_blamed=len(blamed),
        example=f"{blamed[0]}: {failed[blamed[0]]}" if blamed else "",
    )
