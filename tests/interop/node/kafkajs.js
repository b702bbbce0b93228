// kafkajs in every scenario; see scenario_program.js. Its three further codecs are packages, or a few lines, as its documentation proposes.

import * as zlib from 'node:zlib'
import { promisify } from 'node:util'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'
import lz4 from 'lz4-napi'
import { CULPRIT_KEYS, FIRST_TIMESTAMP_MS, ROUND, complete, group, main, name, option, records, round, rounds, same, servers, tell, until, version } from './scenario_program.js'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => promisify(zlib.zstdCompress)(encoder.buffer),
  decompress: async buffer => promisify(zlib.zstdDecompress)(buffer)
})
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD
}

const kafka = new Kafka({ brokers: servers.split(','), logLevel: logLevel.NOTHING, retry: { initialRetryTime: 100, retries: 5 } })
let readers = 0

async function producer (settings = {}) {
  const made = kafka.producer({ createPartitioner: kafkajs.Partitioners.DefaultPartitioner, ...settings })
  await made.connect()
  return made
}

async function admin () {
  const made = kafka.admin()
  await made.connect()
  return made
}

/** A running consumer; what it reads is appended to `found`. `assigned()` counts its partitions. */
async function consumer (groupId, found, settings = {}, afterEach = () => {}) {
  const made = kafka.consumer({ groupId, maxWaitTimeInMs: 200, ...settings })
  let count = 0
  made.on(made.events.GROUP_JOIN, ({ payload }) => { count = (payload.memberAssignment[name] ?? []).length })
  made.on(made.events.REBALANCING, () => { count = 0 })
  await made.connect()
  await made.subscribe({ topics: [name], fromBeginning: true })
  await made.run({
    autoCommit: settings.autoCommit ?? false,
    eachMessage: async ({ message }) => {
      found.push({ ...message, key: String(message.key), value: String(message.value) })
      await afterEach(message)
    }
  })
  return Object.assign(made, { assigned: () => count })
}

async function read (count, settings = {}) {
  const found = []
  const reader = await consumer(`${name}-reader-${readers++}`, found, settings)
  await complete(found, count)
  await reader.disconnect()
  return found
}

async function produce () {
  const sender = await producer()
  await sender.send({ topic: name, messages: records(), compression: CODECS[option] })
  const found = await read(100)
  tell({ acknowledged: 100, read: found.length, same: same(found) })
}

async function headers () {
  const sender = await producer()
  await sender.send({ topic: name, messages: [{ ...records(1)[0], headers: { a: '1', b: '' } }] })
  const [record] = await read(1)
  tell({ headers: Object.entries(record.headers).map(([key, value]) => [key, String(value)]) })
}

async function groupScenario () {
  const sender = await producer()
  const fill = label => sender.send({ topic: name, messages: round(label).flat() })
  const found = []
  const seen = () => new Set(found.map(each => each.value)).size
  await fill('first')
  const one = await consumer(group, found, { autoCommit: true })
  await until(() => seen() === ROUND)
  tell({ alone: one.assigned() })
  const two = await consumer(group, found, { autoCommit: true })
  await until(() => one.assigned() === 2 && two.assigned() === 2)
  tell({ together: [one.assigned(), two.assigned()] })
  await fill('second')
  await until(() => seen() === 2 * ROUND)
  await two.disconnect()
  await until(() => one.assigned() === 4)
  await fill('third')
  await until(() => seen() === 3 * ROUND)
  tell({ after: one.assigned(), records: seen() })
  await one.disconnect()
}

async function offsets () {
  const sender = await producer()
  for (const [number, record] of records().entries()) {
    await sender.send({ topic: name, messages: [{ ...record, timestamp: String(FIRST_TIMESTAMP_MS + 1000 * number) }] })
  }
  const client = await admin()
  const first = await consumer(group, [], {}, async message => {
    if (message.offset === '29') await first.commitOffsets([{ topic: name, partition: 0, offset: '30' }])
  })
  const committed = async () => Number((await client.fetchOffsets({ groupId: group, topics: [name] }))[0].partitions[0].offset)
  await until(async () => (await committed()) === 30)
  tell({ committed: await committed() })
  await first.disconnect()
  const found = []
  const second = await consumer(group, found)
  await until(() => found.length > 0)
  tell({ resumed: Number(found[0].offset) })
  await until(() => found.length === 70)
  second.seek({ topic: name, partition: 0, offset: '70' })
  await until(() => found.length > 70)
  tell({ sought: Number(found[70].offset) })
  const [byTime] = await client.fetchTopicOffsetsByTimestamp(name, FIRST_TIMESTAMP_MS + 49_500)
  const [{ low, high }] = await client.fetchTopicOffsets(name)
  tell({ by_time: Number(byTime.offset), beginning: Number(low), end: Number(high) })
  await second.disconnect()
}

async function idempotent () {
  const sender = await producer({ idempotent: true, maxInFlightRequests: 1 })
  await sender.send({ topic: name, messages: records() })
  tell({ acknowledged: 100 })
}

async function transactions () {
  const sender = await producer({ transactionalId: `${name}-id`, idempotent: true, maxInFlightRequests: 1 })
  for (const number of [0, 1, 2]) {
    const transaction = await sender.transaction()
    await transaction.send({ topic: name, messages: records(10, `round ${number}`) })
    if (number < 2) {
      const topics = [{ topic: name, partitions: [{ partition: 0, offset: String(5 + number) }] }]
      await transaction.sendOffsets({ consumerGroupId: group, topics })
    }
    await (number === 1 ? transaction.abort() : transaction.commit())
  }
  const [{ partitions }] = await (await admin()).fetchOffsets({ groupId: group, topics: [name] })
  const committed = await read(20)
  const uncommitted = await read(30, { readUncommitted: true })
  tell({ committed: committed.length, rounds: rounds(committed), uncommitted: uncommitted.length, offset: Number(partitions[0].offset) })
}

async function topics () {
  const client = await admin()
  const topic = `${name}-made`
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const retention = async () => {
    const { resources } = await client.describeConfigs({ resources: [resource], includeSynonyms: false })
    return resources[0].configEntries.find(entry => entry.configName === 'retention.ms').configValue
  }
  const partitions = async () => (await client.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  const wanted = { topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: [{ name: 'retention.ms', value: '7200000' }] }], waitForLeaders: true }
  await client.createTopics(wanted)
  tell({ created: await partitions() })
  tell({ refused: (await client.createTopics(wanted)) === false })
  tell({ config: await retention() })
  await client.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }] })
  await until(async () => (await retention()) === '3600000')
  tell({ altered: await retention() })
  await client.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  await until(async () => (await partitions()) === 4)
  tell({ partitions: await partitions() })
  const sender = await producer()
  await sender.send({ topic, messages: records(10).map(record => ({ ...record, partition: 3 })) })
  await client.deleteTopicRecords({ topic, partitions: [{ partition: 3, offset: '5' }] })
  const listed = await client.fetchTopicOffsets(topic)
  tell({ records_deleted: Number(listed.find(each => each.partition === 3).low) })
  await client.deleteTopics({ topics: [topic] })
  tell({ deleted: !(await client.listTopics()).includes(topic) })
}

async function groups () {
  const sender = await producer()
  await sender.send({ topic: name, messages: records(10) })
  const found = []
  const member = await consumer(group, found)
  await until(() => found.length === 10)
  await member.commitOffsets([{ topic: name, partition: 0, offset: '10' }])
  await member.disconnect()
  const client = await admin()
  const isListed = async () => (await client.listGroups()).groups.some(each => each.groupId === group)
  tell({ listed: await isListed() })
  tell({ state: (await client.describeGroups([group])).groups[0].state.toLowerCase() })
  const [{ partitions }] = await client.fetchOffsets({ groupId: group, topics: [name] })
  tell({ offset: Number(partitions[0].offset) })
  await client.deleteGroups([group])
  tell({ deleted: !(await isListed()) })
}

async function culprits () {
  const sender = await producer()
  try {
    await sender.send({ topic: name, messages: CULPRIT_KEYS.map(key => ({ key, value: 'v' })) })
    tell({ fates: CULPRIT_KEYS.map(() => null) })
  } catch (error) { // One error for all records of a call.
    tell({ fates: CULPRIT_KEYS.map(() => error.type ?? error.name) })
  }
}

await main({ produce, headers, group: groupScenario, offsets, idempotent, transactions, topics, groups, culprits, versions: () => version('kafkajs') })
