#!/bin/sh
# Install the Node.js packages that tests/compat compares with. Run again at will: it does nothing when all is there.
# The folder is $CYBERKV_COMPAT_DIR, by default build/compat at the top of the repository.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${CYBERKV_COMPAT_DIR:-$here/../../build/compat}
mkdir -p "$folder"
if cmp -s "$here/package.json" "$folder/package.json" && [ -e "$folder/installed" ]; then
    exit 0
fi
rm -f "$folder/installed"
cp "$here/package.json" "$folder/package.json"
(cd "$folder" && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error)
touch "$folder/installed"
