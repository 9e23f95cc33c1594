// Fetch CIDs with Helia's verified-fetch, which learns from a router who has them, and print for each what came of it.
// Arguments: the router's URL, then `hash` or `nohash` (whether blake3 is passed in), then the CIDs.
import { withHTTP } from '@helia/http'
import { createVerifiedFetchWithHelia } from '@helia/verified-fetch'
import * as dagCbor from '@ipld/dag-cbor'
import { blake3 } from '@noble/hashes/blake3.js'
import { createHeliaLight } from 'helia'
import { from } from 'multiformats/hashes/hasher'

const [router, hash, ...cids] = process.argv.slice(2)
const hashers = hash === 'hash' ? [from({ name: 'blake3', code: 0x1e, encode: (bytes) => blake3(bytes) })] : []
const light = createHeliaLight({ codecs: [dagCbor], hashers })
// Without the two `allow` plain http on this machine is left out; without the empty list others are asked too.
const helia = await withHTTP(light, {
  delegatedRouters: [router],
  recursiveGateways: [],
  allowInsecure: true,
  allowLocal: true
}).start()
const verifiedFetch = await createVerifiedFetchWithHelia(helia)

const found = {}
for (const cid of cids) {
  try {
    const answer = await verifiedFetch(`ipfs://${cid}`, { signal: AbortSignal.timeout(10_000) })
    const body = Buffer.from(await answer.arrayBuffer())
    found[cid] = { status: answer.status, body: body.toString('hex') }
  } catch (error) {
    found[cid] = { error: `${error.name}: ${error.message}` }
  }
}
console.log(JSON.stringify(found))
process.exit(0)
