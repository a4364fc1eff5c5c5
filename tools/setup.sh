#!/bin/sh
# Installs the Debian packages the build needs, or says exactly what to install. usage: setup.sh WHAT PACKAGE...
set -eu
what=$1; shift
missing=
for p in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | cut -c1-2)" = ii ] || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this system has no apt-get; install the equivalents of these Debian packages, then: touch build/.setup build/.setup-test" >&2
    echo "   $missing" >&2
    exit 1
fi
# env behind sudo, which passes no variables on.
noask="env DEBIAN_FRONTEND=noninteractive"
if [ "$(id -u)" = 0 ]; then as=$noask
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as="sudo $noask"
else
    echo "setup: $what needs packages that are not installed; as root run:" >&2
    echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
echo "setup: installing$missing"
log=$(mktemp)
# The lists of a fresh machine are empty; an old list still works, so a failed update is not the end.
$as apt-get update >"$log" 2>&1 || true
# shellcheck disable=SC2086
if ! $as apt-get install -y --no-install-recommends $missing >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get could not install:$missing (log: $log)" >&2
    exit 1
fi
rm -f "$log"
