#!/usr/bin/env bash
# Builds the image VARIANT (cpu, gpu, tpu, jax, jax-gpu or flink) as NAME, with docker, podman or buildah, whichever there is,
# and prints its size. BASE_IMAGE names another one to build on than the Dockerfile does.
set -euo pipefail
cd "$(dirname "$0")/.."
variant=$1 name=$2

file=images/Dockerfile
[ "$variant" != flink ] || file=images/flink/Dockerfile
arguments=(--file "$file" --build-arg "VARIANT=$variant" --tag "$name")
arguments+=(--build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
[ -z "${BASE_IMAGE:-}" ] || arguments+=(--build-arg "PYTHON=$BASE_IMAGE")

export DOCKER_BUILDKIT=1 # RUN --mount needs BuildKit: part of docker before version 23, the plugin buildx since then
for tool in docker podman buildah; do
  command -v "$tool" >/dev/null && "$tool" info >/dev/null 2>&1 || continue
  if [ "$tool" = docker ] && ! docker buildx version >/dev/null 2>&1; then
    version=$(docker version --format '{{.Client.Version}}')
    if [ "${version%%.*}" -ge 23 ]; then
      echo "docker $version has no buildx, which it builds with. Install docker-buildx-plugin (Debian: docker-buildx)." >&2
      continue
    fi
  fi
  echo "$tool builds $name" >&2
  "$tool" build "${arguments[@]}" .
  exec "$tool" images "$name"
done
echo "No docker (with buildx), podman or buildah here that answers. Install one of them." >&2
exit 30
