#!/usr/bin/env bash
# Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer in a directory and runs the native tests
# with it: sanitized.sh DIRECTORY [pytest arguments]. Needs cmake, ninja, and nanobind in the Python that runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."
directory=$(realpath -m "$1")
shift

cmake -S . -B "$directory/build" -G Ninja -DNYBBLE_SANITIZE=ON -DPython_EXECUTABLE="$(command -v python)"
cmake --build "$directory/build"

# The package as it is in the tree, around this extension; PYTHONPATH goes before what is installed.
rm -rf "$directory/package"
mkdir -p "$directory/package/nybble"
for part in src/nybble/*; do
  case $part in *.so | */__pycache__) ;; *) ln -s "$PWD/$part" "$directory/package/nybble/" ;; esac
done
ln -s "$directory"/build/_native*.so "$directory/package/nybble/"

# Python itself leaks by design. libstdc++ must be there when ASan looks for __cxa_throw.
compiler=${CXX:-c++}
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$directory/package" \
  python -m pytest -p no:cacheprovider tests/native "$@"
