# Sourced by the install scripts: `cache` is the folder that keeps what takes minutes to build or fetch. It stands outside
# the checkout, so that a fresh clone finds it. benchmarks/kubo_node.py says the same to the tests.
cache=${CYBERKV_COMPAT_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/cyberkv-compat}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
