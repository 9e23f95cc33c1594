"""Every bound on foreign input, in one place.

Bytes from a peer, a CAR file or another home are hostile until proven otherwise: each decoder checks its bound
before it allocates, so a lying length costs an error and never memory.
"""

MAX_NODE_BYTES = 1 << 20
"""Largest dag-cbor node. Older IPFS nodes refuse blocks over 1 MiB."""

MAX_LEAF_BYTES = 2 << 20
"""Largest raw leaf. IPFS nodes exchange blocks up to 2 MiB."""

MAX_NODE_DEPTH = 16
"""Containers inside containers. No node type nests deeper than 4."""

MAX_NODE_ITEMS = 1 << 17
"""Values inside one node, so that a node of one-byte items cannot become a hundred megabytes of objects."""

MAX_FOREIGN_DEPTH = 64
"""Containers inside containers in other people's nodes."""

MAX_FOREIGN_NODE_BYTES = 2 << 20
"""Largest node of other people: IPFS nodes exchange blocks up to 2 MiB."""

MAX_JSON_BYTES = 4 << 20
"""Largest dag-json: that of a largest dag-cbor node, whose bytes and links take more room there."""

MAX_TEXT_BYTES = 1 << 16
"""Longest text value in a node."""

MAX_CAR_HEADER_BYTES = 1 << 16
"""CAR header: version and roots only."""

MAX_CAR_SECTION_BYTES = 36 + MAX_LEAF_BYTES
"""One CAR section: a CID and its block."""

MAX_CAR_SECTIONS = 1 << 21
"""Blocks in one CAR file that is opened for random access: over ten million tokens of a large model."""

MAX_BLOCK_TOKENS = 1024
"""Largest `block_size`."""

MAX_SEGMENT_LINKS = 256
"""Blocks per segment (one page of the page table)."""

MAX_SEGMENTS = 16_384
"""Segments per conversation: 4 million blocks, and a root node still under 1 MiB."""

MAX_LEAVES_PER_BLOCK = 1024
"""Layer groups per block."""

MAX_LAYERS = 1024
"""Layers of a model."""

MAX_TITLE_BYTES = 1024
"""Title of a conversation or name of a model."""

MAX_EPOCH = (1 << 32) - 1
"""Epochs of one lineage."""

MAX_WRAPS = 1024
"""Readers of one grant, with those that are nobody."""

MAX_WRAP_BYTES = 1168
"""One wrapped content key: 80 bytes for X25519, all of these with ML-KEM-768."""

MAX_PINSET_LINKS = 8192
"""Links of one pin set: 320 KiB."""

MAX_RING_KEYS = 1024
"""Readers among whom one may hide: a proof of 64 KiB."""

MAX_SEGMENT_PAGES_BYTES = 64 << 20
"""Sealed pages of one segment, which are read together: 256 blocks of 1024 leaves take 45 MiB."""

MAX_SEALED_PAGES = 8000
"""Pages of a sealed conversation, beside the first: 33 million tokens, all pages in one pin set."""
