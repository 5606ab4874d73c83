#!/usr/bin/env bash
# Install the Chromium that the tests of the report and the explorer are run in; without it these tests are skipped.
set -euo pipefail
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  if command -v "$name" > /dev/null; then
    echo "there is one: $(command -v "$name"), $("$name" --version --no-sandbox 2> /dev/null | head -n 1)"
    exit 0
  fi
done
if ! command -v apt-get > /dev/null; then
  echo "install Chromium by hand, or name one by BNNDP_BROWSER: there is no apt-get here" >&2
  exit 1
fi
root=()
if [[ $(id -u) -ne 0 ]]; then root=(sudo); fi
"${root[@]}" apt-get update
"${root[@]}" apt-get install --yes --no-install-recommends chromium-headless-shell fonts-dejavu-core \
  || "${root[@]}" apt-get install --yes --no-install-recommends chromium fonts-dejavu-core
