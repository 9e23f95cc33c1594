#!/bin/sh
# Build the Kubo that tests/compat talks to, at the versions pinned here. It does nothing when that one is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../folder.sh"
folder=$cache/kubo
if cmp -s "$here/go.sum" "$folder/go.sum" && [ -x "$folder/ipfs" ]; then
    exit 0
fi
if ! command -v go >/dev/null; then
    echo "no Go toolchain: Kubo is not built, and its tests will be skipped" >&2
    exit 0
fi
# Built beside the folder and moved there whole: a build that was stopped leaves nothing that looks like one.
rm -rf "$folder.new"
mkdir -p "$folder.new"
cp "$here/go.mod" "$here/go.sum" "$folder.new/"
# Without C and without what debuggers read: both cost time, and nothing here needs them.
if (cd "$folder.new" && CGO_ENABLED=0 go build -mod=mod -ldflags='-s -w' -gcflags=all=-dwarf=false -o ipfs github.com/ipfs/kubo/cmd/ipfs); then
    # The build may write to its go.sum; the pinned one says which build this is.
    cp "$here/go.sum" "$folder.new/"
    rm -rf "$folder"
    mv "$folder.new" "$folder"
else
    echo "Kubo could not be built (are the Go modules reachable?): its tests will be skipped" >&2
fi
