#!/bin/sh
# Takes out of the packages in $VIRTUAL_ENV what no step of ours reads. Sizes were measured with tensorflow 2.21.0.
set -eu
site=$(echo "$VIRTUAL_ENV"/lib/python3*/site-packages)

# C++ headers (0.4 GB), and the packages' own tests (0.1 GB).
rm -rf "$site/tensorflow/include" "$site/pyarrow/include"
for package in pandas scipy sklearn pyarrow; do
  [ ! -d "$site/$package" ] || find "$site/$package" -type d -name tests -prune -exec rm -rf {} +
done

# Symbols that only a debugger reads (0.2 GB).
find "$site/tensorflow" -name '*.so*' -type f -size +4M -exec strip --strip-unneeded {} +
