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
