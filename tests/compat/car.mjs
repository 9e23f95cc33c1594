// Read a CAR as it streams, from a URL or a file, and print what came: the roots, and for every block whether it has the
// hash of its CID and, where it is dag-cbor, whether this encoder writes the same bytes.
import { createReadStream } from 'node:fs'

import { CarBlockIterator } from '@ipld/car'
import * as dagCbor from '@ipld/dag-cbor'
import { blake3 } from '@noble/hashes/blake3.js'
import { sha256 } from '@noble/hashes/sha2.js'

const [source] = process.argv.slice(-1)
const HASHES = { 0x12: sha256, 0x1e: (bytes) => blake3(bytes) }
const same = (a, b) => Buffer.compare(a, b) === 0

let body = source
if (/^https?:/.test(source)) {
  const answer = await fetch(source)
  if (!answer.ok) throw new Error(`${answer.status} from ${source}`)
  body = answer.body
} else {
  body = createReadStream(source)
}

const reader = await CarBlockIterator.fromIterable(body)
const blocks = []
for await (const { cid, bytes } of reader) {
  const hashed = same(HASHES[cid.multihash.code](bytes), cid.multihash.digest)
  const reencodes = cid.code !== dagCbor.code || same(dagCbor.encode(dagCbor.decode(bytes)), bytes)
  blocks.push([cid.toString(), hashed, reencodes])
}
console.log(JSON.stringify({ roots: (await reader.getRoots()).map(String), blocks }))
