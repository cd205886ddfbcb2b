#!/usr/bin/env bash
# build.sh OUT PROGRAM…: builds programs of Kubernetes, or etcd, into OUT.
# The version is stamped in as release builds do: an apiserver without one
# refuses to start.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd); shift
cd "$(dirname "$0")"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=$(cut -d. -f2 <<<"$version")
flags="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags="$flags -X $p.gitVersion=$version -X $p.gitMajor=1 -X $p.gitMinor=$minor -X $p.gitTreeState=clean -X $p.buildDate=1970-01-01T00:00:00Z"
done
for name in "$@"; do
  case $name in
    etcd) package=go.etcd.io/etcd/server/v3 ;;
    kwok) package=sigs.k8s.io/kwok/cmd/kwok ;;
    *) package=k8s.io/kubernetes/cmd/$name ;;
  esac
  CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$out/$name" "$package"
done
