"""Writes batches.txt: the samples of batch_samples.py, encoded by aiokafka, not by Chaffinch.

Run it after adding a sample: `python -m tests.golden.write_batches`. The gzip bytes depend on the zlib at hand; any will do.
"""

from __future__ import annotations

from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.golden.batch_samples import SAMPLES, Sample

PATH = Path(__file__).with_name("batches.txt")


def written(sample: Sample) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=sample.codec,
        is_transactional=sample.is_transactional,
        producer_id=sample.identity.producer_id,
        producer_epoch=sample.identity.epoch,
        base_sequence=sample.base_sequence,
        batch_size=1 << 20,
    )
    for offset, (key, value, timestamp, headers) in enumerate(sample.rows):
        builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    return bytes(builder.build())


def main() -> None:
    PATH.write_text("".join(f"{name} {written(sample).hex()}\n" for name, sample in SAMPLES.items()))


if __name__ == "__main__":
    main()
