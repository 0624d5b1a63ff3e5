#!/usr/bin/env bash
# Runs a Python program on an emulated 64-bit ARM processor: benchmarks/engine/emulate_aarch64.sh FOLDER PROGRAM [ARGUMENTS]
#
# FOLDER is made on the first run (about 400 MB): Debian's arm64 Python 3.11 and its libraries, and the
# aarch64 wheels of what small models train with. Nothing is installed on this machine. It needs
# Debian's `qemu-user-static`, `apt-get`, `dpkg` and a `python3` with pip. Emulation is 20 to 50 times slower.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: $0 FOLDER PROGRAM [ARGUMENTS]" >&2; exit 2; }
command -v qemu-aarch64-static >/dev/null || { echo "$0 needs Debian's qemu-user-static" >&2; exit 2; }

checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift

DEBS=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g
      libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1)
WHEELS=(gymnasium numba numpy tqdm)

if [[ ! -e "$folder/complete" ]]; then
    mkdir -p "$folder"/{debs,root,site,wheels,apt/state/lists/partial,apt/cache/archives/partial}
    apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
         -o "Dir::State=$folder/apt/state" -o "Dir::State::status=/dev/null"
         -o "Dir::Cache=$folder/apt/cache")
    "${apt[@]}" update
    (cd "$folder/debs" && "${apt[@]}" download "${DEBS[@]}")
    for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done
    platforms=()
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${tag}_aarch64")
    done
    python3 -m pip download -q --disable-pip-version-check --only-binary=:all: --python-version 3.11 \
        "${platforms[@]}" -c "$checkout/constraints.txt" -d "$folder/wheels" "${WHEELS[@]}"
    for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
    touch "$folder/complete"
fi

export PYTHONPATH="$checkout:$folder/site" PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR="$folder/numba"
exec qemu-aarch64-static -L "$folder/root" "$folder/root/usr/bin/python3.11" "$@"
