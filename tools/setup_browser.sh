#!/usr/bin/env bash
# Install the Chromium that the tests of the report and the explorer are run in; without it these tests are skipped.
set -euo pipefail
for name in "${BNNDP_BROWSER:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
  if [[ -n "$name" ]] && command -v "$name" > /dev/null; then
    echo "there is one: $(command -v "$name"), $("$name" --version --no-sandbox 2> /dev/null | head -n 1)"
    exit 0
  fi
done
fail() {
  echo "install Chromium by hand, or name one by BNNDP_BROWSER: $1" >&2
  exit 1
}
command -v apt-get > /dev/null || fail "there is no apt-get here"
root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null || fail "apt-get needs root, and there is no sudo here"
  root=(sudo)
  [[ -t 0 ]] || root+=(--non-interactive) # nobody is there to type a password
fi
install() {
  "${root[@]}" apt-get install --yes --no-install-recommends "$1" fonts-dejavu-core
}
"${root[@]}" apt-get update || fail "apt-get update failed"
install chromium-headless-shell || install chromium || fail "apt-get could not install it"
