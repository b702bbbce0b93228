// What the Node programs share; each is called as SCENARIO BOOTSTRAP_SERVERS NAME and prints facts (see ../scenarios.py).

import { readFileSync } from 'node:fs'
import { setTimeout as wait } from 'node:timers/promises'

export const TIMEOUT_MS = 30_000
export const FIRST_TIMESTAMP_MS = 1_700_000_000_000
export const ROUND = 40
export const CULPRIT_KEYS = ['k', null, 'k', null, 'k']
const SILENCE_MS = 500

export const [scenario, option] = process.argv[2].split(/-(.*)/)
export const [servers, name] = process.argv.slice(3)
export const group = `${name}-group`

export function tell (facts) {
  console.log(JSON.stringify(facts, (_, value) => (typeof value === 'bigint' ? Number(value) : value)))
}

export function records (count = 100, label = 'value') {
  return Array.from({ length: count }, (_, number) => ({ key: `key-${number}`, value: `${label}-${number} ${'x'.repeat(100)}` }))
}

/** Four times ten records, a list per partition. */
export function round (label) {
  const made = records(ROUND, label)
  return [0, 1, 2, 3].map(partition => made.filter((_, number) => number % 4 === partition).map(record => ({ ...record, partition })))
}

export function same (found) {
  const text = each => `${each.key} ${each.value}`
  return JSON.stringify(found.map(text).sort()) === JSON.stringify(records().map(text).sort())
}

export async function until (done) {
  const limit = Date.now() + TIMEOUT_MS
  while (!(await done())) {
    if (Date.now() > limit) throw new Error(`nothing more after ${TIMEOUT_MS} ms`)
    await wait(20)
  }
}

/** Wait until `found` has `count` entries, and a moment longer for one too many. */
export async function complete (found, count) {
  await until(() => found.length >= count)
  await wait(SILENCE_MS)
  return found
}

export function rounds (found) {
  return [...new Set(found.map(each => Number(each.value[6])))].sort()
}

export function version (module) {
  tell({ version: JSON.parse(readFileSync(new URL(`node_modules/${module}/package.json`, import.meta.url))).version })
}

/** Run the chosen scenario; a client that holds on to its sockets is not waited for. */
export async function main (scenarios) {
  try {
    await scenarios[scenario]()
    process.exit(0)
  } catch (error) {
    console.error(error)
    process.exit(1)
  }
}
