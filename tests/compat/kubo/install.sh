#!/bin/sh
# Build the Kubo that tests/compat talks to, at the versions pinned here. It does nothing when that one is there.
# The folder is $CYBERKV_KUBO_DIR, by default build/kubo at the top of the repository.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${CYBERKV_KUBO_DIR:-$here/../../../build/kubo}
if ! command -v go >/dev/null; then
    echo "no Go toolchain: Kubo is not built, and its tests will be skipped" >&2
    exit 0
fi
mkdir -p "$folder"
if cmp -s "$here/go.sum" "$folder/go.sum" && [ -e "$folder/ipfs" ]; then
    exit 0
fi
rm -f "$folder/ipfs"
cp "$here/go.mod" "$here/go.sum" "$folder/"
if ! (cd "$folder" && go build -mod=mod -ldflags='-s -w' -o ipfs github.com/ipfs/kubo/cmd/ipfs); then
    echo "Kubo could not be built (are the Go modules reachable?): its tests will be skipped" >&2
fi
