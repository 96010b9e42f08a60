#!/bin/sh
# Takes out of the packages in $VIRTUAL_ENV what no step of ours reads. MB, measured with tensorflow 2.21.0.
set -eu
site=$(echo "$VIRTUAL_ENV"/lib/python3*/site-packages)

# C++ headers (400), and the packages' own tests (150).
rm -rf "$site/tensorflow/include" "$site/pyarrow/include" "$site/tests"
for package in apache_beam keras tensorflow tensorflow_transform tfx_bsl; do
  [ ! -d "$site/$package" ] || find "$site/$package" -name '*_test.py' -delete
done
for package in numpy pandas scipy sklearn pyarrow; do
  [ ! -d "$site/$package" ] || find "$site/$package" -type d -name tests -prune -exec rm -rf {} +
done

# Libraries that only their own modules load: StableHLO and XLA operations as Python (30), Arrow's RPC (30),
# LiteRT on WebGPU and its compiler plugins (27); onnxruntime for C and its tools for transformers (38); ONNX's cases
# for backends (15); and what plotly shows in a notebook (10).
rm -rf "$site/tensorflow/compiler/tf2xla/ops/_xla_ops.so" \
  "$site/tensorflow/compiler/mlir/stablehlo/stablehlo_extension.so" \
  "$site"/pyarrow/libarrow_flight.so.* "$site"/pyarrow/_flight.* \
  "$site/ai_edge_litert/libLiteRtWebGpuAccelerator.so" "$site/ai_edge_litert/tools/apply_plugin_main" \
  "$site"/onnxruntime/capi/libonnxruntime.so.* "$site/onnxruntime/transformers" "$site/onnx/backend" \
  "$site/plotly/labextension" "$site/plotly/package_data/widgetbundle.js"

# How to call the services of AWS (20), but S3 and those that hand out credentials for it.
[ ! -d "$site/botocore/data" ] || find "$site/botocore/data" -mindepth 1 -maxdepth 1 -type d \
  ! -name s3 ! -name sts ! -name sso ! -name sso-oidc ! -name signin -exec rm -rf {} +

# Symbols that only a debugger reads (350). The libraries in *.libs were changed after they were linked, and those of
# the makers of GPUs and TPUs come without: left as they are.
find "$site" -name '*.so*' -type f -size +300k ! -path '*.libs/*' ! -path '*/nvidia/*' ! -path '*/libtpu/*' \
  -exec strip --strip-unneeded {} +
