"""A minimal Kafka connection without a client's machinery, so that benchmarks measure the broker."""

from __future__ import annotations

import socket
import struct
import time

from benchmarks.brokers import BrokerProcess
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.schema import Message
from chaffinch.records import batch

IN_FLIGHT_BYTES = 1 << 20
REQUESTS_IN_FLIGHT_MIN = 5
"""Requests in flight: enough that neither side waits for the other."""

FETCH_BYTES = 16 << 20
CREATE_TIMEOUT_MS = 120_000
TRIES_MAX, PAUSE_SECONDS = 100, 0.1


class WireClient:
    """Blocking requests, and a pipeline of one ready-made frame. Each API uses the highest version that both sides support."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection(broker.address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection("bench")
        self.request(self._connection.api_versions_request())

    def request(self, message: Message) -> Message:
        self._socket.sendall(b"".join(self._connection.encode_request(message)[1]))
        while True:
            buffer = self._connection.get_buffer()
            count = self._socket.recv_into(buffer)
            if not count:
                raise ConnectionError("the broker closed the connection")
            responses = self._connection.buffer_updated(count)
            if responses:
                return responses[0].message

    def frame(self, message: ProduceRequest) -> tuple[bytes, int]:
        """(bytes of a request, size of its response), measured by sending it until the partition accepts it; new topics need a moment."""
        for _ in range(TRIES_MAX):
            _, parts = self._connection.encode_request(message)
            frame = b"".join(parts)
            self._socket.sendall(frame)
            size = struct.unpack(">i", self._receive_exactly(4))[0]
            (response,) = self._connection.receive(struct.pack(">i", size) + self._receive_exactly(size))
            if response.message.responses[0].partition_responses[0].error_code == 0:  # type: ignore[attr-defined]
                return frame, 4 + size
            time.sleep(PAUSE_SECONDS)
        raise RuntimeError(f"the broker does not accept this batch: {response.message}")

    def pipeline(self, frame: bytes, response_bytes: int, count: int) -> None:
        """Send the frame `count` times, pipelined. Every response must have `response_bytes`; an error has another length."""
        window = max(REQUESTS_IN_FLIGHT_MIN, IN_FLIGHT_BYTES // len(frame)) * response_bytes
        expected, received, sent = response_bytes * count, 0, 0
        while received < expected:
            while sent < count and sent * response_bytes - received < window:
                self._socket.sendall(frame)
                sent += 1
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            received += len(data)
        assert received == expected, f"{received} bytes of responses, expected {expected}"

    def exchange(self, frame: bytes, response_bytes: int) -> None:
        """Send one frame and wait for its response."""
        self._socket.sendall(frame)
        self._receive_exactly(response_bytes)

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        response = self.request(CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS))
        (result,) = response.topics  # type: ignore[attr-defined]
        assert result.error_code == 0, result

    def await_leaders(self, topic: str, partitions: int) -> None:
        """Wait until every partition of a new topic has a leader, which may be after the response to its creation."""
        for partition in range(partitions):
            for _ in range(TRIES_MAX):
                wanted = FetchTopic(topic=topic, partitions=[FetchPartition(partition=partition, partition_max_bytes=FETCH_BYTES)])
                response = self.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[wanted]))
                if response.responses[0].partitions[0].error_code == 0:  # type: ignore[attr-defined]
                    break
                time.sleep(PAUSE_SECONDS)
            else:
                raise RuntimeError(f"partition {partition} of {topic} does not answer")

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=CREATE_TIMEOUT_MS)
        (result,) = self.request(request).responses  # type: ignore[attr-defined]
        assert result.error_code == 0, result

    def read_back(self, topic: str, partition: int, offset: int) -> int:
        """Count the records from `offset` to the end, from the headers of batches with a valid checksum."""
        count = 0
        while True:
            wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
            response = self.request(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wanted])]))
            fetched = response.responses[0].partitions[0]  # type: ignore[attr-defined]
            assert fetched.error_code == 0, fetched
            views = list(batch.views(fetched.records, may_be_cut_short=True))
            if not views:
                return count
            assert all(view.crc_is_valid() for view in views)
            count += sum(view.header.count for view in views)
            offset = views[-1].header.last_offset + 1

    def close(self) -> None:
        self._socket.close()

    def _receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data


def produce_request(topic: str, partition: int, records: bytes) -> ProduceRequest:
    """A request with one batch for one partition and acks=all."""
    data = TopicProduceData(name=topic, partitions=[PartitionProduceData(index=partition, records=records)])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topics=[data])
