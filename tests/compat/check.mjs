// Read the golden files with other implementations and print what they make of them, as JSON.
// Arguments: the fixtures folder, the schema file, a path for a CAR written from here.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

import { CarBufferReader, CarWriter } from '@ipld/car'
import * as dagCbor from '@ipld/dag-cbor'
import { fromDSL } from '@ipld/schema/from-dsl.js'
import { create } from '@ipld/schema/typed.js'
import { blake3 } from '@noble/hashes/blake3.js'
import { sha256 } from '@noble/hashes/sha2.js'
import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'

const [fixtures, schemaFile, carOut] = process.argv.slice(-3)
const vectors = JSON.parse(readFileSync(join(fixtures, 'vectors.json'), 'utf8'))
const schema = create(fromDSL(readFileSync(schemaFile, 'utf8')), 'Node')

const HASHES = { 0x12: sha256, 0x1e: (bytes) => blake3(bytes) }
const same = (a, b) => Buffer.compare(a, b) === 0
const rehash = (cid, bytes) =>
  CID.createV1(cid.code, Digest.create(cid.multihash.code, HASHES[cid.multihash.code](bytes))).toString()

// The schema library answers undefined for a value that does not fit, here and for the way back.
const fits = (node) => {
  const typed = schema.toTyped(node)
  return typed !== undefined && same(dagCbor.encode(schema.toRepresentation(typed)), dagCbor.encode(node))
}
const attempt = (verb) => {
  try {
    return { accepted: true, value: verb() }
  } catch (error) {
    return { accepted: false, error: String(error) }
  }
}

const nodes = {}
for (const [name, vector] of Object.entries(vectors.nodes)) {
  const bytes = readFileSync(join(fixtures, vector.file))
  const node = dagCbor.decode(bytes)
  nodes[name] = {
    type: node.type,
    reencodes: same(dagCbor.encode(node), bytes),
    cid: rehash(CID.parse(vector.cid), bytes),
    fits: fits(node),
    fitsWithout: Object.keys(node).filter((key) => {
      const { [key]: _, ...rest } = node
      return attempt(() => fits(rest)).value === true
    }),
    fitsWithMore: attempt(() => fits({ ...node, zzz: 0 })).value === true
  }
}

const golden = readFileSync(join(fixtures, vectors.car.file))
const reader = CarBufferReader.fromBytes(golden)
const roots = reader.getRoots()
const blocks = reader.blocks()
const { writer, out } = CarWriter.create(roots)
const written = (async () => {
  const parts = []
  for await (const part of out) parts.push(part)
  return Buffer.concat(parts)
})()
for (const block of blocks) await writer.put(block)
await writer.close()
writeFileSync(carOut, await written)

const cids = vectors.cids.map(({ data, forms }) =>
  Object.values(forms).every(({ bytes, text }) => {
    const cid = CID.parse(text)
    return Buffer.from(cid.bytes).toString('hex') === bytes && rehash(cid, Buffer.from(data, 'hex')) === text
  })
)

const prefix = []
let parent = null
const { model, tokens, block_size: blockSize } = vectors.prefix_keys
for (let start = 0; start + blockSize <= tokens.length; start += blockSize) {
  parent = sha256(dagCbor.encode([CID.parse(model), parent, tokens.slice(start, start + blockSize)]))
  prefix.push(Buffer.from(parent).toString('hex'))
}

const accepted = readFileSync(join(fixtures, 'rejections.tsv'), 'utf8')
  .trim()
  .split('\n')
  .slice(1)
  .map((line) => line.split('\t'))
  .filter(([reader]) => reader === 'cbor')
  .filter(([, , , , hex]) => attempt(() => dagCbor.decode(Buffer.from(hex, 'hex'))).accepted)
  .map(([, name]) => name)

console.log(
  JSON.stringify({
    nodes,
    car: {
      roots: roots.map(String),
      blocks: blocks.map(({ cid, bytes }) => [cid.toString(), rehash(cid, bytes)])
    },
    cids,
    prefix,
    accepted
  })
)
