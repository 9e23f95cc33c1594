#!/bin/sh
# Bring what tests/compat compares with: Kubo, Node.js packages, Chromium, nginx. Run again at will: what is there stays.
# Nothing here fails the run: whatever could not be had is said, and its tests skip aloud.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/folder.sh"
missing() {
    echo "$1: the tests that need it will be skipped" >&2
}

"$here/kubo/install.sh"

node=$cache/node
if ! cmp -s "$here/package.json" "$node/package.json" || [ ! -e "$node/installed" ]; then
    rm -rf "$node" && mkdir -p "$node" && cp "$here/package.json" "$node/"
    # --ignore-scripts: nothing that is installed here runs before a test does.
    if (cd "$node" && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error); then
        touch "$node/installed"
    else
        missing 'no Node.js packages (are npm and its registry there?)'
    fi
fi

# apt-get update only once, and only where something is to be fetched.
lists() {
    [ -e "$cache/lists" ] || apt-get update -qq && touch "$cache/lists"
}
if ! command -v chromium >/dev/null && ! { lists && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; }; then
    missing 'no Chromium (apt-get, as root)'
fi

# Unpacked, not installed: installing would start a server on port 80.
if ! [ -x "$cache/nginx/usr/sbin/nginx" ]; then
    rm -rf "$cache/nginx" && mkdir -p "$cache/nginx"
    if ! { lists && cd "$cache/nginx" && apt-get -o APT::Sandbox::User=root download -qq nginx && dpkg-deb -x nginx_*.deb . && rm nginx_*.deb && usr/sbin/nginx -v 2>/dev/null; }; then
        rm -rf "$cache/nginx"
        missing 'no nginx (apt-get)'
    fi
fi
rm -f "$cache/lists"
