// @platformatic/kafka in every scenario; see scenario_program.js.

import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'
import { CULPRIT_KEYS, FIRST_TIMESTAMP_MS, ROUND, complete, group, main, name, option, records, round, rounds, same, servers, tell, until, version } from './scenario_program.js'

const READ_UNCOMMITTED = 0
const READ_COMMITTED = 1
const TOPIC = 2
const SET = 0
const EARLIEST = -2n
const common = { clientId: 'interop', bootstrapBrokers: servers.split(','), autocreateTopics: false }
let readers = 0

const producer = (settings = {}) => new Producer({ ...common, serializers: stringSerializers, ...settings })
const admin = () => new Admin(common)

function consumer (groupId, settings = {}) {
  return new Consumer({ ...common, groupId, deserializers: stringDeserializers, autocommit: false, maxWaitTime: 200, ...settings })
}

/** Consume into `found`. */
async function consume (client, found, settings = {}) {
  const stream = await client.consume({ topics: [name], mode: 'committed', fallbackMode: 'earliest', ...settings })
  stream.on('data', message => found.push(message))
  stream.on('error', error => { throw error })
  return stream
}

async function read (count, isolationLevel = READ_COMMITTED) {
  const found = []
  const client = consumer(`${name}-reader-${readers++}`, { isolationLevel })
  await consume(client, found, { mode: 'earliest', isolationLevel })
  await complete(found, count)
  await client.close(true)
  return found
}

const toTopic = (made, topic = name) => made.map(record => ({ topic, ...record }))

async function produce () {
  await producer().send({ messages: toTopic(records()), compression: option })
  const found = await read(100)
  tell({ acknowledged: 100, read: found.length, same: same(found) })
}

async function headers () {
  await producer().send({ messages: [{ topic: name, ...records(1)[0], headers: { a: '1', b: '' } }] })
  const [record] = await read(1)
  tell({ headers: [...record.headers.entries()] })
}

const assigned = client => (client.assignments ?? []).reduce((sum, { partitions }) => sum + partitions.length, 0)

async function groupScenario () {
  const settings = option ? { groupProtocol: option, autocommit: 100 } : { autocommit: 100, heartbeatInterval: 500 }
  const sender = producer()
  const fill = label => sender.send({ messages: toTopic(round(label).flat()) })
  const found = []
  const seen = () => new Set(found.map(each => each.value)).size
  await fill('first')
  const one = consumer(group, settings)
  await consume(one, found)
  await until(() => seen() === ROUND)
  tell({ alone: assigned(one) })
  const two = consumer(group, settings)
  await consume(two, found)
  await until(() => assigned(one) === 2 && assigned(two) === 2)
  tell({ together: [assigned(one), assigned(two)] })
  await fill('second')
  await until(() => seen() === 2 * ROUND)
  await two.close(true)
  await until(() => assigned(one) === 4)
  await fill('third')
  await until(() => seen() === 3 * ROUND)
  tell({ after: assigned(one), records: seen() })
  await one.close(true)
}

async function offsets () {
  const sender = producer()
  for (const [number, record] of records().entries()) {
    await sender.send({ messages: [{ topic: name, ...record, timestamp: BigInt(FIRST_TIMESTAMP_MS + 1000 * number) }] })
  }
  const first = consumer(group)
  const early = []
  await consume(first, early)
  await until(() => early.length >= 30)
  await first.commit({ offsets: [{ topic: name, partition: 0, offset: 30n, leaderEpoch: 0 }] })
  const committed = await first.listCommittedOffsets({ topics: [{ topic: name, partitions: [0] }] })
  tell({ committed: committed.get(name)[0] })
  await first.close(true)
  const second = consumer(group)
  const resumed = []
  const stream = await consume(second, resumed)
  await until(() => resumed.length > 0)
  tell({ resumed: resumed[0].offset })
  await stream.close()
  const sought = []
  await consume(second, sought, { mode: 'manual', offsets: [{ topic: name, partition: 0, offset: 70n }] })
  await until(() => sought.length > 0)
  tell({ sought: sought[0].offset })
  const listed = async timestamp => (await second.listOffsets({ topics: [name], timestamp })).get(name)[0]
  tell({ by_time: await listed(BigInt(FIRST_TIMESTAMP_MS + 49_500)), beginning: await listed(EARLIEST), end: await listed(-1n) })
  await second.close(true)
}

async function idempotent () {
  await producer({ idempotent: true }).send({ messages: toTopic(records()) })
  tell({ acknowledged: 100 })
}

async function transactions () {
  const sender = producer({ idempotent: true, transactionalId: `${name}-id` })
  const member = consumer(group)
  await consume(member, [])
  for (const number of [0, 1, 2]) {
    const transaction = await sender.beginTransaction()
    await transaction.send({ messages: toTopic(records(10, `round ${number}`)) })
    if (number < 2) { // What a message of this consumer would say of itself; its offset is that before the one to commit.
      const { groupId, generationId, memberId, coordinatorId } = member
      await transaction.addConsumer(member)
      await transaction.addOffset({ topic: name, partition: 0, offset: BigInt(4 + number), metadata: { consumer: { groupId, generationId, memberId, coordinatorId } } })
    }
    await (number === 1 ? transaction.abort() : transaction.commit())
  }
  const offset = (await member.listCommittedOffsets({ topics: [{ topic: name, partitions: [0] }] })).get(name)[0]
  await member.close(true)
  const committed = await read(20)
  tell({ committed: committed.length, rounds: rounds(committed), uncommitted: (await read(30, READ_UNCOMMITTED)).length, offset })
}

async function topics () {
  const client = admin()
  const topic = `${name}-made`
  const resource = { resourceType: TOPIC, resourceName: topic }
  const retention = async () => {
    const [{ configs }] = await client.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
    return configs[0].value
  }
  const partitions = async () => (await client.metadata({ topics: [topic], forceUpdate: true })).topics.get(topic).partitionsCount
  const wanted = { topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'retention.ms', value: '7200000' }] }
  await client.createTopics(wanted)
  tell({ created: await partitions() })
  tell({ refused: await client.createTopics(wanted).then(() => false, error => protocolErrors(error).includes('TOPIC_ALREADY_EXISTS')) })
  tell({ config: await retention() })
  await client.incrementalAlterConfigs({ resources: [{ ...resource, configs: [{ name: 'retention.ms', configOperation: SET, value: '3600000' }] }] })
  await until(async () => (await retention()) === '3600000')
  tell({ altered: await retention() })
  await client.createPartitions({ topics: [{ name: topic, count: 4, assignments: null }] })
  await until(async () => (await partitions()) === 4)
  tell({ partitions: await partitions() })
  await producer().send({ messages: toTopic(records(10), topic).map(record => ({ ...record, partition: 3 })) })
  await client.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 3, offset: 5n }] }] })
  const [listed] = await client.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 3, timestamp: EARLIEST }] }] })
  tell({ records_deleted: listed.partitions[0].offset })
  await client.deleteTopics({ topics: [topic] })
  tell({ deleted: !(await client.listTopics()).includes(topic) })
}

async function groups () {
  await producer().send({ messages: toTopic(records(10)) })
  const found = []
  const member = consumer(group)
  await consume(member, found)
  await until(() => found.length === 10)
  await member.commit({ offsets: [{ topic: name, partition: 0, offset: 10n, leaderEpoch: 0 }] })
  await member.close(true)
  const client = admin()
  const isListed = async () => (await client.listGroups()).has(group)
  tell({ listed: await isListed() })
  tell({ state: (await client.describeGroups({ groups: [group] })).get(group).state.toLowerCase() })
  const [{ topics: [{ partitions }] }] = await client.listConsumerGroupOffsets({ groups: [group] })
  tell({ offset: partitions[0].committedOffset })
  await client.deleteGroups({ groups: [group] })
  tell({ deleted: !(await isListed()) })
}

async function culprits () {
  const sender = producer({ retries: 0 })
  const messages = CULPRIT_KEYS.map(key => ({ topic: name, key: key ?? undefined, value: 'v' }))
  tell({ fates: await sender.send({ messages, acks: -1 }).then(() => [], protocolErrors) })
}

/** The names of Kafka's errors inside an error: this client has one tree of them for all records of a call. */
function protocolErrors (error) {
  return [...(error.apiId ? [error.apiId] : []), ...(error.errors ?? []).flatMap(protocolErrors)]
}

await main({ produce, headers, group: groupScenario, offsets, idempotent, transactions, topics, groups, culprits, versions: () => version('@platformatic/kafka') })
