// Read nodes as DAG-JSON from URLs that end in the CID, and print for each whether @ipld/dag-json writes the same text
// and @ipld/dag-cbor makes the block of it.
import * as dagCbor from '@ipld/dag-cbor'
import * as dagJson from '@ipld/dag-json'

const bytesOf = async (url) => {
  const answer = await fetch(url)
  if (!answer.ok) throw new Error(`${answer.status} from ${url}`)
  return Buffer.from(await answer.arrayBuffer())
}
const same = (a, b) => Buffer.compare(a, b) === 0

const found = []
for (const url of process.argv.slice(2)) {
  const text = await bytesOf(`${url}?format=dag-json`)
  const node = dagJson.decode(text)
  found.push([same(dagJson.encode(node), text), same(dagCbor.encode(node), await bytesOf(`${url}?format=raw`))])
}
console.log(JSON.stringify(found))
