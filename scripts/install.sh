#!/bin/sh
# Install this project, with the extras that are named, into .venv: by uv, which takes a fifth of pip's time.
# Who has told pip of another index gets pip: uv would not ask there. So does whoever cannot have uv.
set -eu
python=.venv/bin/python
pip() { "$python" -m pip install --quiet --disable-pip-version-check "$@" -c constraints.txt; }
has_own_index() { "$python" -m pip config list 2>/dev/null | grep -Eq '\.(no-)?index'; }
fast() {
  if has_own_index; then return 1; fi
  uv=$(command -v uv || command -v .venv/bin/uv) || { pip uv 2>/dev/null && uv=.venv/bin/uv; } || return 1
  # Compiled at once, as pip does: what a package's source is warned of would else fail the first test that imports it.
  "$uv" pip install --quiet --compile-bytecode --python "$python" -e ".$1" -c constraints.txt
}
fast "${1-}" || pip -e ".${1-}"
