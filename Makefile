# Roundhouse's targets. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Without gRPC's trace pages nothing calls methods by their names, and the linker
# leaves out those that nobody calls: a quarter of the binary.
GOFLAGS_BUILD := -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$(VERSION)"
PEERS := .venv/peers
# MLServer's dependencies exclude those of the clients in PEERS.
MLSERVER := .venv/mlserver
# Engines that run on any machine: llama.cpp, Triton, KServe's Python server.
ENGINES := .venv/engines
# And those that take gigabytes.
ENGINES_VLLM := .venv/engines-vllm
ENGINES_SGLANG := .venv/engines-sglang
# Clients of the Hugging Face Hub: today's, and one from before Xet.
HUB := .venv/hub
HUB_OLD := .venv/hub-old
# Microsoft's emulator of Azure Storage.
AZURITE := .venv/azurite
# The generator of the documentation site.
SITE := .venv/site
# Gateways that Debian does not have: for the benchmark's table alone.
GATEWAYS := .venv/gateways
# Another cache of the Hub, likewise.
OLAH := .venv/olah
CADDY := github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9
PORTKEY := @portkey-ai/gateway@1.15.2
LINT := bin/golangci-lint
# The programs of a Kubernetes that tests start, built from their modules.
K8S := bin/k8s
# Helm, which renders the chart; built of this version it takes a Kubernetes of that one for granted.
HELM := bin/helm
HELM_K8S := -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36
# Prometheus' reader of expressions, for the test of alerts and dashboard.
PROMQL := bin/promql
K8S_API := $(K8S)/etcd $(K8S)/kube-apiserver
K8S_NODE := $(K8S_API) $(addprefix $(K8S)/,kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
# What clusters are given besides: LeaderWorkerSets, and names in DNS.
K8S_ADDONS := $(addprefix $(K8S)/,lws lws.yaml coredns versitygw)
IMAGE ?= bin/roundhouse-image.tar
IMAGE_TAG ?= roundhouse:$(VERSION)
IMAGE_ARCHS ?= amd64 arm64
IMAGE_PROGRAMS := cmd/roundhouse cmd/roundhouse-server cmd/roundhouse-pause
# roundhouse-onnx needs the C library, and ONNX Runtime: it has an image of its own,
# which shares the layers of the others.
ONNX_IMAGE ?= bin/roundhouse-onnx-image.tar
ONNX_IMAGE_TAG ?= roundhouse-onnx:$(VERSION)
ONNX_RUNTIME := 1.31.1

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: build
build: ## build bin/roundhouse and the programs beside it
	@CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/ ./cmd/...

.PHONY: run
run: build ## build, start everything with examples/quickstart, print what can be asked
	@exec bin/roundhouse up -f examples/quickstart

.PHONY: test
test: published-crds $(K8S_API) $(K8S)/kube-controller-manager $(HELM) $(PROMQL) ## run the tests (race detector on; nothing to install but Go's modules)
	go test -race -timeout 14m ./...

# Packages whose tests start an API server.
API_TESTS = $(shell go list -f '{{range .TestImports}}{{if eq . "$(KUBETEST)"}}{{$$.ImportPath}} {{end}}{{end}}{{range .XTestImports}}{{if eq . "$(KUBETEST)"}}{{$$.ImportPath}} {{end}}{{end}}' ./...)
KUBETEST := roundhouse.dev/roundhouse/internal/edge/kube/kubetest

.PHONY: unit
unit: ## run the tests that need no API server, for a change of one thing
	@go test -timeout 10m $(filter-out $(API_TESTS),$(shell go list ./...))

.PHONY: test-peers
test-peers: $(PEERS)/.installed $(MLSERVER)/.installed $(HUB)/.installed $(HUB_OLD)/.installed $(AZURITE)/.installed ## compare with the real packages from PyPI
	ROUNDHOUSE_AZURITE=$(abspath $(AZURITE))/node_modules/.bin/azurite-blob \
	ROUNDHOUSE_HUB_PYTHON=$(abspath $(HUB))/bin/python ROUNDHOUSE_HUB_OLD_PYTHON=$(abspath $(HUB_OLD))/bin/python \
	ROUNDHOUSE_PEERS_PYTHON=$(abspath $(PEERS))/bin/python ROUNDHOUSE_MLSERVER_PYTHON=$(abspath $(MLSERVER))/bin/python \
	  go test -count=1 -timeout 30m -tags peers ./test/peers/...
	ROUNDHOUSE_PYTHON=$(abspath $(PEERS))/bin/python ROUNDHOUSE_PEERS_PYTHON=$(abspath $(PEERS))/bin/python \
	  go test -count=1 -timeout 20m ./cmd/roundhouse ./cmd/internal/skeleton ./internal/edge/engine/worker/... ./internal/edge/engine/onnx/... ./test/e2e
	ROUNDHOUSE_MLSERVER_PYTHON=$(abspath $(MLSERVER))/bin/python $(PEERS)/bin/python -m pytest -q -rs python/tests

# What checks the console's sources, and drives a browser through it.
CONSOLE_NODE := console/node_modules/.installed
$(CONSOLE_NODE): console/package.json console/package-lock.json
	npm ci --prefix console --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: check-console
check-console: $(CONSOLE_NODE) ## check the console's sources: types and lint; needs npm
	npm run --silent --prefix console check

# Where the browser tests put what they saw.
SCREENSHOTS ?= .cache/screenshots
CHROMIUM = $$(command -v chromium || command -v chromium-browser || command -v google-chrome)
.PHONY: chromium
chromium:
	@test -n "$(CHROMIUM)" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -q chromium >/dev/null; } || \
	  { echo "install Chromium: apt-get install chromium"; exit 1; }

.PHONY: test-console
test-console: build $(CONSOLE_NODE) chromium ## drive the console in a real browser, with a real up; needs Chromium and npm
	cd test/console && ROUNDHOUSE_BINARY=$(abspath bin/roundhouse) ROUNDHOUSE_CHROMIUM=$(CHROMIUM) ROUNDHOUSE_SCREENSHOTS=$(abspath $(SCREENSHOTS)) \
	  go test -count=1 -timeout 15m ./...

.PHONY: console-pictures
console-pictures: build $(CONSOLE_NODE) chromium ## take the console's pictures in docs/images, in ten minutes
	cd test/console && ROUNDHOUSE_PICTURES=1 ROUNDHOUSE_BINARY=$(abspath bin/roundhouse) ROUNDHOUSE_CHROMIUM=$(CHROMIUM) ROUNDHOUSE_SCREENSHOTS=$(abspath docs/images) \
	  go test -count=1 -timeout 20m -run TestPictures ./...

.PHONY: vendor-console
vendor-console: $(CONSOLE_NODE) ## make console/vendor anew from the versions in console/package.json
	cd tools/console && go run . vendor ../../console

.PHONY: test-engines
test-engines: $(ENGINES)/.installed $(MLSERVER)/.installed ## serve models with the real llama-server, Triton, KServe's Python server and MLServer
	ROUNDHOUSE_ENGINES=$(abspath $(ENGINES)) ROUNDHOUSE_ENGINES_MLSERVER=$(abspath $(MLSERVER)) \
	  go test -count=1 -timeout 20m ./test/engines

# CONTAINER_ENGINE prints which of the two works: a docker without its daemon does not.
CONTAINER_ENGINE = { command -v podman >/dev/null && echo podman; } || { docker info >/dev/null 2>&1 && echo docker; }

.PHONY: test-containers
test-containers: ## run replicas as containers of podman or Docker; on Debian as root it installs podman and runc if neither works
	@$(CONTAINER_ENGINE) >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq podman runc >/dev/null; } || \
	  { echo "test-containers: needs podman, or docker and its daemon: install one" >&2; exit 1; }
	ROUNDHOUSE_TEST_CONTAINERS=$$($(CONTAINER_ENGINE)) go test -count=1 -timeout 15m ./test/containers

.PHONY: test-engines-vllm
test-engines-vllm: $(ENGINES_VLLM)/.installed ## serve models with the real vLLM, and with transformers, on CPUs; installs 6 GB
	ROUNDHOUSE_ENGINES_VLLM=$(abspath $(ENGINES_VLLM)) go test -count=1 -v -timeout 90m -run 'VLLM|HuggingFace' ./test/engines

.PHONY: test-engines-sglang
test-engines-sglang: $(ENGINES_SGLANG)/.installed ## serve a model with the real SGLang on CPUs; installs 6 GB
	ROUNDHOUSE_ENGINES_SGLANG=$(abspath $(ENGINES_SGLANG)) go test -count=1 -v -timeout 90m -run SGLang ./test/engines

.PHONY: test-torch
test-torch: $(PEERS)/.installed ## serve models of PyTorch and Hugging Face with ROUNDHOUSE_TORCH_PYTHON, which has their libraries
	ROUNDHOUSE_PEERS_PYTHON=$(abspath $(PEERS))/bin/python go test -count=1 -v -timeout 10m -tags peers -run TestTorch ./test/peers/modelserver ./test/peers/safetensors

$(PEERS)/.installed: test/peers/requirements.txt test/peers/requirements-mlserver-runtimes.txt
	python3 -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -r $<
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $(word 2,$^)
	@touch $@

$(MLSERVER)/.installed: test/peers/requirements-mlserver.txt test/peers/requirements-mlserver-runtimes.txt
	python3 -m venv $(MLSERVER)
	$(MLSERVER)/bin/pip install --quiet --disable-pip-version-check -r $<
	$(MLSERVER)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $(word 2,$^)
	@touch $@

$(ENGINES)/.installed: test/engines/install.sh $(wildcard test/engines/requirements*.txt)
	test/engines/install.sh $(ENGINES)
	@touch $@

$(ENGINES_VLLM)/.installed: test/engines/install-llm.sh test/engines/requirements-vllm.txt
	test/engines/install-llm.sh vllm $(ENGINES_VLLM)
	@touch $@

$(ENGINES_SGLANG)/.installed: test/engines/install-llm.sh test/engines/requirements-sglang.txt
	test/engines/install-llm.sh sglang $(ENGINES_SGLANG)
	@touch $@

$(HUB)/.installed: test/peers/requirements-hub.txt
	python3 -m venv $(HUB)
	$(HUB)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(HUB_OLD)/.installed: test/peers/requirements-hub-old.txt
	python3 -m venv $(HUB_OLD)
	$(HUB_OLD)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(HELM): tools/helm/go.mod tools/helm/go.sum
	cd tools/helm && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(HELM_K8S)" -o ../../$(HELM) helm.sh/helm/v3/cmd/helm

$(PROMQL): tools/promql/go.mod tools/promql/go.sum tools/promql/main.go
	cd tools/promql && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o ../../$(PROMQL) .

.PHONY: published-crds
published-crds: ## fetch other projects' CRDs, which tests write objects of and compare our stand-ins with
	@go mod download github.com/kserve/kserve@v0.15.2 sigs.k8s.io/gateway-api-inference-extension@v1.1.0 sigs.k8s.io/gateway-api-inference-extension@v0.5.1 sigs.k8s.io/gateway-api@v1.5.1 sigs.k8s.io/lws@v0.7.0 github.com/prometheus-operator/prometheus-operator@v0.84.0 github.com/argoproj/argo-cd/v3@v3.0.0 github.com/fluxcd/helm-controller/api@v1.3.0 github.com/fluxcd/source-controller/api@v1.6.0 || \
	  echo "published-crds: not all could be downloaded; tests that compare with them are skipped"

$(K8S)/kwok: tools/kwok/go.mod tools/kwok/go.sum
	cd tools/kwok && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(abspath $@) sigs.k8s.io/kwok/cmd/kwok

# How KWOK's nodes and pods go on from one state to the next.
$(K8S)/kwok-stages.yaml: tools/kwok/go.mod
	@mkdir -p $(K8S)
	stages=$$(cd tools/kwok && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage && \
	  for f in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do \
	    cat $$stages/$$f.yaml && echo && echo --- || exit 1; done > $@

# The controller of LeaderWorkerSets, and what its installation applies.
$(K8S)/lws: tools/lws/go.mod tools/lws/go.sum
	cd tools/lws && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(abspath $@) sigs.k8s.io/lws/cmd

$(K8S)/lws.yaml: $(K8S)/lws $(K8S)/kubectl
	$(K8S)/kubectl kustomize $$(cd tools/lws && go list -m -f '{{.Dir}}' sigs.k8s.io/lws)/config/default > $@.new && mv $@.new $@

$(K8S)/coredns: tools/coredns/go.mod tools/coredns/go.sum tools/coredns/main.go
	cd tools/coredns && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(abspath $@) .

# An S3 server that checks signatures, for models fetched in pods.
$(K8S)/versitygw: tools/versitygw/go.mod tools/versitygw/go.sum
	cd tools/versitygw && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(abspath $@) github.com/versity/versitygw/cmd/versitygw

# The conformance suites of the Gateway API and its Inference Extension, as they
# are published, and the programs of the pods that these make.
CONFORMANCE := $(addprefix $(K8S)/,conformance-inference conformance-gateway echo-http echo-basic epp)
$(K8S)/echo-basic $(K8S)/epp $(K8S)/conformance-inference &: tools/conformance/inference/go.mod tools/conformance/inference/go.sum
	cd tools/conformance/inference && export CGO_ENABLED=0 && \
	  go build -trimpath -ldflags "-s -w" -o $(abspath $(K8S))/echo-basic sigs.k8s.io/gateway-api/conformance/echo-basic && \
	  go build -trimpath -ldflags "-s -w" -o $(abspath $(K8S))/epp sigs.k8s.io/gateway-api-inference-extension/cmd/epp && \
	  go test -c -trimpath -ldflags "-s -w" -o $(abspath $(K8S))/conformance-inference sigs.k8s.io/gateway-api-inference-extension/conformance
	@touch $(K8S)/echo-basic $(K8S)/epp $(K8S)/conformance-inference

$(K8S)/echo-http $(K8S)/conformance-gateway &: tools/conformance/gateway/go.mod tools/conformance/gateway/go.sum tools/conformance/gateway/suite_test.go
	cd tools/conformance/gateway && export CGO_ENABLED=0 && \
	  go build -trimpath -ldflags "-s -w" -o $(abspath $(K8S))/echo-http sigs.k8s.io/gateway-api/conformance/echo-basic && \
	  go test -c -trimpath -ldflags "-s -w" -o $(abspath $(K8S))/conformance-gateway .
	@touch $(K8S)/echo-http $(K8S)/conformance-gateway

$(K8S)/%: tools/kubernetes/go.mod tools/kubernetes/go.sum tools/kubernetes/build.sh
	tools/kubernetes/build.sh $(K8S) $*
	@touch $@

.PHONY: image
image: ## write bin/roundhouse-image.tar, an OCI image for amd64 and arm64, without Docker
	@rm -rf bin/image
	@for a in $(IMAGE_ARCHS); do mkdir -p bin/image/linux_$$a && \
	  GOOS=linux GOARCH=$$a CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/image/linux_$$a/ $(addprefix ./,$(IMAGE_PROGRAMS)) || exit 1; done
	@mkdir -p $(dir $(IMAGE))
	go run ./deploy/image -o $(IMAGE) -tag $(IMAGE_TAG) $(addprefix bin/image/linux_,$(IMAGE_ARCHS))

.PHONY: image-onnx
image-onnx: ## write bin/roundhouse-onnx-image.tar, the image of ONNX models' pods; takes the libraries from PyPI and Debian
	@rm -rf bin/image-onnx
	@for a in $(IMAGE_ARCHS); do mkdir -p bin/image-onnx/linux_$$a && \
	  GOOS=linux GOARCH=$$a CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/image-onnx/linux_$$a/ $(addprefix ./,$(IMAGE_PROGRAMS) cmd/roundhouse-onnx) && \
	  deploy/image/onnx.sh $$a bin/image-onnx/linux_$$a/root $(ONNX_RUNTIME) || exit 1; done
	go run ./deploy/image -tree -o $(ONNX_IMAGE) -tag $(ONNX_IMAGE_TAG) $(addprefix bin/image-onnx/linux_,$(IMAGE_ARCHS))

.PHONY: test-image-onnx
test-image-onnx: ## build the image with ONNX Runtime of this machine's architecture, and serve a model from it; needs root
	@$(MAKE) --no-print-directory image-onnx ONNX_IMAGE=bin/test-onnx-image.tar IMAGE_ARCHS=$$(go env GOARCH)
	ROUNDHOUSE_ONNX_IMAGE=$(abspath bin/test-onnx-image.tar) go test -count=1 -v -run ONNX ./deploy/image

.PHONY: test-image-python
test-image-python: build ## build the image of examples/python-runtimes on Debian's Python, and serve models from it; needs root, buildah and podman
	deploy/image/python.sh $$(go env GOARCH) bin/image-python
	ROUNDHOUSE_PYTHON_BASE=$(abspath bin/image-python) go test -count=1 -v -timeout 20m -run Python ./deploy/image

# The image of this machine's architecture, under the name that the cluster's
# tests import it by.
.PHONY: e2e-image
e2e-image:
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(K8S)/ ./test/kubernetes/node/pause ./test/kubernetes/node/server
	@$(MAKE) --no-print-directory image IMAGE=$(K8S)/roundhouse-image.tar IMAGE_TAG=roundhouse.local/roundhouse:e2e IMAGE_ARCHS=$$(go env GOARCH)

# An older release, which the test of upgrades begins with: chart and image of a
# commit.
BEFORE ?= HEAD~80
.PHONY: e2e-image-before
e2e-image-before: ## build the release that e2e-kubernetes upgrades from, of the commit BEFORE
	@set -e; out=$(abspath $(K8S))/before; src=$$(mktemp -d); trap 'rm -rf $$src' EXIT; arch=linux_$$(go env GOARCH); \
	  rm -rf $$out && mkdir -p $$out && git archive $(BEFORE) | tar -x -C $$src && cp -rL $$src/deploy/helm/roundhouse $$out/chart && cd $$src && \
	  CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o image/$$arch/ $$(ls -d ./cmd/roundhouse ./cmd/roundhouse-{server,controller,kafka} 2>/dev/null) && \
	  go run ./deploy/image -o $$out/image.tar -tag roundhouse.local/roundhouse:before image/$$arch

DIST ?= dist
# Where the files of the release will be published, for install.sh and the formula.
RELEASE_URL ?=
RELEASE := bin/release
$(RELEASE): $(wildcard tools/release/*.go) tools/release/go.mod tools/release/go.sum
	cd tools/release && CGO_ENABLED=0 go build -trimpath -o ../../$(RELEASE) .

.PHONY: release
release: $(RELEASE) ## write dist/: archives, deb, rpm, wheels, image, chart, SBOMs, checksums; of the commit's tag, or a snapshot
	$(RELEASE) -root . -out $(DIST) $(if $(RELEASE_URL),-url $(RELEASE_URL))

# A Debian to install the package in: made where debootstrap and root are, else
# the test says that it does not install.
DEBIAN := .cache/debian
.PHONY: test-release
test-release: release $(HELM) ## install what `make release` wrote: script, wheel, packages, image and chart in a registry
	@if [ ! -d $(DEBIAN)/var/lib/dpkg ] && [ "$$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then mkdir -p $(DEBIAN) && debootstrap --variant=minbase stable $(abspath $(DEBIAN)) >/dev/null || rm -rf $(DEBIAN); fi
	if [ -d $(DEBIAN)/var/lib/dpkg ]; then export ROUNDHOUSE_DEBIAN_ROOT=$(abspath $(DEBIAN)); fi; \
	  cd tools/release && ROUNDHOUSE_DIST=$(abspath $(DIST)) ROUNDHOUSE_HELM=$(abspath $(HELM)) go test -count=1 -v .

.PHONY: push
push: $(RELEASE) $(HELM) $(if $(ONNX),image-onnx) ## push the image and the chart in dist/ to REGISTRY; with ONNX=1 the image with ONNX Runtime too
	@test -n "$(REGISTRY)" || { echo "push: say where to: make push REGISTRY=127.0.0.1:5000"; exit 2; }
	$(RELEASE) push -dist $(DIST) -helm $(HELM) $(if $(ONNX),-onnx $(ONNX_IMAGE)) $(REGISTRY)

.PHONY: publish
publish: ## make a draft of a release of the tag TAG on GitHub from dist/, with gh
	@test -n "$(TAG)" || { echo "publish: say which tag: make publish TAG=v1.2.3"; exit 2; }
	gh release create "$(TAG)" --draft --verify-tag --notes-from-tag $(DIST)/*

.PHONY: e2e-kubernetes
e2e-kubernetes: published-crds $(K8S_NODE) $(K8S_ADDONS) $(HELM) e2e-image ## run the product on a real Kubernetes node; needs root, docs/kubernetes-testing.md says what else
	go test -tags kubernetes -count=1 -v -timeout 30m ./test/kubernetes

.PHONY: conformance-kubernetes
conformance-kubernetes: published-crds $(K8S_NODE) $(HELM) $(CONFORMANCE) e2e-image ## run the conformance suites of the Gateway API and its Inference Extension on a real Kubernetes node
	go test -tags kubernetes -count=1 -v -timeout 40m ./test/kubernetes/conformance

$(AZURITE)/.installed:
	npm install --ignore-scripts --no-audit --no-fund --loglevel=error --prefix $(AZURITE) azurite@3.35.0
	@touch $@

.PHONY: scale-kubernetes
scale-kubernetes: $(K8S_NODE) $(K8S)/kwok $(K8S)/kwok-stages.yaml e2e-image ## measure the controller with 1,000 services on pods that run nowhere
	go test -tags kubernetes -count=1 -v -timeout 20m ./test/kubernetes/scale

.PHONY: verify
verify: generate format lint cross dirty ## regenerate, format, lint, cross-compile, fail on a dirty tree

.PHONY: generate
generate: $(HELM)
	go mod tidy
	go generate ./...

.PHONY: format
format:
	gofmt -l -w $$(git ls-files '*.go')

$(LINT): tools/go.mod tools/go.sum
	cd tools && go build -o ../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: $(LINT)
	go vet ./...
	$(LINT) run ./...

.PHONY: cross
cross:
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/roundhouse
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/roundhouse-server
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/roundhouse-onnx

.PHONY: dirty
dirty:
	@test -z "$$(git status --porcelain)" || { git status --short; git diff | head -50; echo "verify: the tree is dirty: commit what was regenerated"; exit 1; }

$(SITE)/.installed: tools/site/requirements.txt
	python3 -m venv $(SITE)
	$(SITE)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@touch $@

.PHONY: docs
docs: $(SITE)/.installed ## render docs/ to .cache/site; fails on a link that leads nowhere or a page without a place
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

.PHONY: docs-serve
docs-serve: $(SITE)/.installed ## show the documentation at http://127.0.0.1:8000, and what changes in it
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs serve --dev-addr 127.0.0.1:8000

.PHONY: docs-version
docs-version: $(SITE)/.installed ## render docs/ as DOCS_VERSION into the branch gh-pages, as the latest; pushes nothing
	@test -n "$(DOCS_VERSION)" || { echo "docs-version: say which: make docs-version DOCS_VERSION=1.2"; exit 2; }
	NO_MKDOCS_2_WARNING=1 PATH=$(abspath $(SITE))/bin:$$PATH mike deploy --update-aliases $(DOCS_VERSION) latest

.PHONY: bench
bench: build $(PEERS)/.installed $(MLSERVER)/.installed ## measure; docs/benchmarks.md says what and how
	ROUNDHOUSE_PEERS_PYTHON=$(abspath $(PEERS))/bin/python ROUNDHOUSE_MLSERVER_PYTHON=$(abspath $(MLSERVER))/bin/python \
	  go run ./bench -binary bin/roundhouse

.PHONY: bench-gateways
bench-gateways: ## install Caddy and Portkey for `make bench`; nginx and haproxy come from the system
	GOBIN=$(abspath $(GATEWAYS)) GOFLAGS= go install $(CADDY)
	npm install --ignore-scripts --no-audit --no-fund --loglevel=error --prefix $(GATEWAYS) $(PORTKEY)

.PHONY: bench-olah
bench-olah: ## install olah, another cache of the Hub, for `make bench`
	python3 -m venv $(OLAH)
	$(OLAH)/bin/pip install --quiet --disable-pip-version-check olah==0.5.4

.PHONY: fuzz
fuzz: ## fuzz every target for 20 s
	@for p in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  for f in $$(grep -h '^func Fuzz' $$p/*_test.go | sed 's/func \(Fuzz[A-Za-z0-9]*\).*/\1/'); do \
	    go test -run '^$$' -fuzz "^$$f$$" -fuzztime 20s $$p || exit 1; done; done

# How long `make sim` looks, and from which seed on.
SIM_FOR ?= 10m
SIM_FROM ?= 1
.PHONY: sim
sim: ## run the house in virtual time, seed after seed, for SIM_FOR (10m)
	GOGC=400 go test ./internal/sim -count=1 -v -timeout 0 -run 'TestSeeds$$|TestRegressions$$' -for $(SIM_FOR) -from $(SIM_FROM)

.PHONY: sim-mutants
sim-mutants: ## break the product in known ways and see that `make sim` would notice
	go test ./internal/sim -count=1 -v -timeout 0 -run 'TestMutantsAreSeen$$' -mutants

.PHONY: clean
clean: ## remove what was built
	rm -rf bin .venv dist .cache
