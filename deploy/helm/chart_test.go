// Package helm tests the Helm chart: what it renders, that an API server takes
// it, and that what it allows is enough and no more.
package helm

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestMain(m *testing.M) { kubetest.Main(m) }

const (
	program   = "../../bin/helm"
	namespace = "roundhouse-system"
)

// helm runs Helm, and gives what it prints, less what it says of the links to
// files that the chart shares.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		t.Skip("no bin/helm: make bin/helm")
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", errors.New(err.Error() + ": " + errs.String() + out.String())
	}
	return out.String(), nil
}

// values are the sets that goldens and the API server see.
var values = map[string]string{
	"default": "crds: {install: false}\n",
	"namespaces": `
crds: {install: false}
watchNamespaces: [team-a, team-b]
gateway: {service: {type: LoadBalancer, annotations: {a: b}}}
`,
	"pickers": "crds: {install: false}\nendpointPicker: {namespaces: [team-a]}\n",
	"bare": `
crds: {install: false}
rbac: {create: false}
gateway: {enabled: false}
controller: {replicas: 1, resources: {}}
`,
	"no-reserves": "crds: {install: false}\nreserves: {enabled: false}\nbenchmarks: {enabled: false}\ngateway: {service: {port: 8080}}\n",
	"https":       "crds: {install: false}\ngateway: {https: {enabled: true}}\n",
	// What clusters differ in: how traffic comes in, who scales, who may talk to whom.
	"platform": `
crds: {install: false}
commonLabels: {team: models}
onnxImage: {repository: registry.example/onnx, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  gatewayFrom: [{ipBlock: {cidr: 10.0.0.0/8}}]
  apiServer: {ports: [6443], peers: [{ipBlock: {cidr: 10.0.0.1/32}}]}
controller:
  resources: {limits: {memory: 1.5Gi}}
  metricsServers: ["http://prometheus.monitoring:9090", "https://metrics.example/prometheus"]
  externalScaler: {secret: scaler}
  networkPolicy: {egress: [{ports: [{port: 9000}]}]}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
  envFrom: [{secretRef: {name: proxy}}]
  extraVolumes: [{name: authorities, configMap: {name: authorities}}]
  extraVolumeMounts: [{name: authorities, mountPath: /etc/authorities, readOnly: true}]
gateway:
  autoscaling:
    enabled: true
    maxReplicas: 20
    memoryPercent: 80
    metrics: [{type: Pods, pods: {metric: {name: requests}, target: {type: AverageValue, averageValue: "100"}}}]
    behavior: {scaleDown: {stabilizationWindowSeconds: 600}}
  service:
    type: LoadBalancer
    loadBalancerClass: example.com/internal
    loadBalancerSourceRanges: [10.0.0.0/8]
    externalTrafficPolicy: Local
    ipFamilyPolicy: PreferDualStack
    nodePort: 30080
    grpcNodePort: 30081
  ingress:
    enabled: true
    className: nginx
    annotations: {nginx.ingress.kubernetes.io/proxy-body-size: 64m}
    labels: {exposed: "yes"}
    hosts: ["*.models.example.com", api.example.com]
    tls: [{secretName: wildcard, hosts: ["*.models.example.com"]}]
  httpRoute:
    enabled: true
    labels: {exposed: "yes"}
    annotations: {a: b}
    parentRefs: [{name: public, namespace: infra, sectionName: https}]
    hostnames: ["*.models.example.com"]
    timeouts: {request: 30m}
  tracingServer: http://otel.monitoring:4318
  endpointPickerTimeout: 5s
  annotations: {reloader.example.com/auto: "true"}
  serviceAccount: {create: false, name: gateways}
  podDisruptionBudget: {maxUnavailable: 25%}
  envFrom: [{configMapRef: {name: proxy}}]
  extraVolumes: [{name: authorities, configMap: {name: authorities}}]
  extraVolumeMounts: [{name: authorities, mountPath: /etc/authorities, readOnly: true}]
hubCache:
  enabled: true
  upstream: http://mirror.example:8090
  ringMinSize: 4MiB
  publicURL: https://hub.example
  offline: true
  verbose: true
  serviceAccountName: cache
  annotations: {a: b}
  podLabels: {c: d}
  podAnnotations: {a: b}
  resources: {limits: {memory: 2G}}
  env: [{name: GOMEMLIMIT, value: 1GiB}]
  extraVolumes: [{name: authorities, configMap: {name: authorities}}]
  extraVolumeMounts: [{name: authorities, mountPath: /etc/authorities, readOnly: true}]
endpointPicker:
  namespaces: [team-a, team-b]
  verbose: true
  fallbacks: 2
  sessionHeader: X-Session-Id
  allowPaths: [/v1/custom, "/extra/*"]
  configMap: picker
  tls: {secret: picker-tls}
  serviceAccount: {name: pickers, annotations: {a: b}}
  annotations: {a: b}
  podLabels: {c: d}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}]
  env: [{name: A, value: "1"}]
  extraVolumes: [{name: more, emptyDir: {}}]
  extraVolumeMounts: [{name: more, mountPath: /more}]
metrics:
  serviceMonitor: {create: true, scrapeTimeout: 10s}
  podMonitor: {create: true, labels: {release: prometheus}, metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: go_.*}]}
`,
	"policies": `
crds: {install: false}
rbac: {routerAccounts: false, trainedModels: false, schedulerConfigMaps: false}
watchNamespaces: [team-a, team-b]
networkPolicy: {enabled: true}
onnxImage: {enabled: false}
controller: {podDisruptionBudget: {enabled: false}}
gateway: {podDisruptionBudget: {enabled: false}, ingress: {enabled: true}}
endpointPicker: {namespaces: [team-a], tls: {enabled: false}}
`,
	"everything": `
crds: {install: false}
fullnameOverride: serving
image: {repository: registry.example/roundhouse, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000", pullPolicy: Always, pullSecrets: [registry]}
adopt: [kserve, gateway]
installCRDs: [kserve, gie]
logFormat: json
controller:
  verbose: true
  serviceAccount: {annotations: {role: reader}}
  podAnnotations: {a: b}
  podLabels: {c: d}
  nodeSelector: {disk: ssd}
  tolerations: [{operator: Exists}]
  priorityClassName: system-cluster-critical
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
  allowInternalModels: true
  leaseSeconds: 60
  metricsServers: ["http://prometheus.monitoring:9090"]
  replicaMetrics: 100
  externalScaler: {secret: scaler}
  args: [--models-dir=/tmp]
  env: [{name: A, value: "1"}]
gateway:
  replicas: 3
  verbose: true
  url: "https://{name}.{namespace}.models.example.com"
  service: {port: 443, grpcPort: 8443}
  tls: {secret: certificate}
  https: {enabled: true, port: 9443}
  apiKeys: {content: "keys: []\n"}
  corsOrigins: ["https://chat.example.com"]
  sessionHeader: X-Session-Id
  answerTimeout: 2m
  queue: {maxRequests: 512, maxWait: 3m}
  waitingComments: 2s
  accessLog: true
  tracingServer: otel:4317
  allowInternalAddresses: true
  endpointPickers: ignore
  leaveSeconds: 30
  serviceAccount: {annotations: {role: reader}}
  podAnnotations: {a: b}
  podLabels: {c: d}
  nodeSelector: {disk: ssd}
  tolerations: [{operator: Exists}]
  priorityClassName: system-cluster-critical
  topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]
  args: [--endpoint-picker-timeout=5s]
  env: [{name: A, value: "1"}]
gatewayClass: {create: true, anyHost: [infra, platform]}
hubCache: {enabled: true, replicas: 3, ringSecret: ring, storage: {size: 1Ti, className: fast}, maxSize: 900GiB, upstream: "https://mirror.example", args: [--verbose]}
modelStore: {hostPath: /var/lib/roundhouse/models, maxSize: 500GiB}
endpointPicker:
  namespaces: [team-a, team-b]
  args: [--fallbacks=2]
  config:
    apiVersion: llm-d.ai/v1alpha1
    kind: EndpointPickerConfig
    plugins: [{type: queue-scorer}]
    schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
metrics:
  serviceMonitor: {create: true, labels: {release: prometheus}}
  rules: {create: true, labels: {release: prometheus}}
  dashboard: {create: true}
`,
}

// render is the chart with values.
func render(t *testing.T, set string) string {
	t.Helper()
	return renderWith(t, set)
}

// renderWith is the chart with values, by a command with further flags.
func renderWith(t *testing.T, set string, flags ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := helm(t, append([]string{"template", "roundhouse", "roundhouse", "--namespace", namespace, "--kube-version", "1.36.3", "--values", file}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGolden(t *testing.T) {
	for name, set := range values {
		t.Run(name, func(t *testing.T) {
			got := render(t, set)
			if at := strings.Index(got, "roundhouse.json: "); at >= 0 {
				line, rest, _ := strings.Cut(got[at:], "\n")
				got = got[:at] + line[:min(len(line), 40)] + "…\n" + rest // the dashboard is tested by itself
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: make it with -update", err)
			}
			g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
			for i := range max(len(g), len(w)) {
				if i >= len(g) || i >= len(w) || g[i] != w[i] {
					t.Fatalf("%s:%d differs: rerun with -update and read the diff", file, i+1)
				}
			}
		})
	}
}

func TestLint(t *testing.T) {
	for name, set := range values {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(set), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := helm(t, "lint", "--strict", "roundhouse", "--values", file, "--kube-version", "1.36.3"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchema: a value that is misspelt or cannot be is refused.
func TestSchema(t *testing.T) {
	for _, set := range []string{"contoller.replicas=2", "controller.replica=2", "controller.replicas=two", "controller.replicas=-1",
		"adopt={kubeflow}", "installCRDs={knative}", "image.pullPolicy=Sometimes", "logFormat=xml", "image.digest=sha1:0", "watchNamespaces={Team_A}",
		"gateway.service.type=External", "gateway.service.port=0", "gateway.service.prot=80", "gateway.leaveSeconds=301", "gateway.tls.cert=a",
		"gateway.args={verbose}", "controller.leaseSeconds=5", "networkPolicy.apiServer.ports={}", "networkPolicy.gatewayFrom[0].pods=all", "gateway.autoscaling.minReplicas=0",
		"gateway.ingress.path=models", "gateway.httpRoute.parentRefs[0].kind=Gateway", "gateway.service.externalTrafficPolicy=local", "commonLabels.app\\.kubernetes\\.io/name=mine",
		"gateway.endpointPickerTimeout=soon", "controller.podDisruptionBudget.maxUnavailable=half", "endpointPicker.allowPaths={v1}", "onnxImage.digest=1", "controller.allowInternalModels=maybe", "gateway.allowInternalModels=true", "gateway.verbose=loud", "metrics.dashboard.enabled=true", "crds.kepe=true", "fullnameOverride=9lives"} {
		_, err := helm(t, "template", "roundhouse", "roundhouse", "--kube-version", "1.36.3", "--set", set)
		if err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("--set %s: %v", set, err)
		}
	}
	if _, err := helm(t, "template", "roundhouse", "roundhouse", "--kube-version", "1.29.0"); err == nil {
		t.Error("a Kubernetes that is too old is not refused")
	}
}

// TestRelease installs, upgrades and uninstalls the chart with Helm itself: who
// installs is told what runs and that there are no keys, and the CRDs outlive
// the release.
func TestRelease(t *testing.T) {
	c := kubetest.Client(t)
	place(t, c, namespace)
	release := func(verb string, args ...string) string {
		out, err := helm(t, append([]string{verb, "roundhouse", "--namespace", namespace, "--kubeconfig", kubeconfig(t)}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := release("install", "roundhouse", "--take-ownership")
	for _, want := range []string{"every namespace", "service/roundhouse-gateway 8080:80", "no API keys"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	out = release("upgrade", "roundhouse", "--set", "gateway.apiKeys.secret=keys,adopt={kserve},watchNamespaces={default}")
	if strings.Contains(out, "no API keys") || !strings.Contains(out, "kserve") || !strings.Contains(out, "looks after default") {
		t.Error(out)
	}
	release("uninstall")
	ours, err := crds.Ours()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range ours {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Errorf("%s went with the release: %v", u.GetName(), err)
		}
	}
	var left unstructured.UnstructuredList
	left.SetAPIVersion("apps/v1")
	left.SetKind("DeploymentList")
	if err := c.List(t.Context(), &left, client.InNamespace(namespace)); err != nil || len(left.Items) > 0 {
		t.Errorf("%d Deployments are left: %v", len(left.Items), err)
	}
}

// kubeconfig is a file for programs that speak to the test's API server.
func kubeconfig(t *testing.T) string {
	t.Helper()
	cfg := kubetest.Server(t)
	api := clientcmdapi.NewConfig()
	api.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + strings.TrimPrefix(cfg.Host, "https://"), CertificateAuthorityData: cfg.CAData}
	api.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	api.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	api.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*api, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// install applies rendered objects; dry does so without keeping them. Both go
// by the strict reading that kubectl has.
func install(t *testing.T, c client.Client, objects []*unstructured.Unstructured, dry bool) {
	t.Helper()
	opts := []client.ApplyOption{client.FieldOwner("helm"), client.ForceOwnership}
	if dry {
		opts = append(opts, client.DryRunAll)
	}
	for _, u := range objects {
		strict := u.DeepCopy()
		if err := c.Create(t.Context(), strict, client.DryRunAll, client.FieldValidation("Strict")); client.IgnoreAlreadyExists(err) != nil {
			t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
			continue
		}
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u.DeepCopy()), opts...); err != nil {
			t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
}

// place makes the namespaces, in which nothing but what is restricted may run.
func place(t *testing.T, c client.Client, names ...string) {
	t.Helper()
	for _, n := range names {
		ns := &corev1.Namespace{}
		ns.Name, ns.Labels = n, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
		if err := client.IgnoreAlreadyExists(c.Create(t.Context(), ns)); err != nil {
			t.Fatal(err)
		}
	}
}

// operators are kinds of others that the chart makes objects of, permissive.
var operators = []string{
	definition("gateway.networking.k8s.io", "v1", "GatewayClass", "gatewayclasses", "Cluster"),
	definition("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", "Namespaced"),
	definition("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", "Namespaced"),
	definition("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", "Namespaced"),
	definition("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", "Namespaced"),
}

func definition(group, version, kind, plural, scope string) string {
	return fmt.Sprintf(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "%[4]s.%[1]s", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
"spec": {"group": "%[1]s", "scope": "%[5]s", "names": {"kind": "%[3]s", "plural": "%[4]s", "listKind": "%[3]sList", "singular": "%[6]s"},
"versions": [{"name": "%[2]s", "served": true, "storage": true, "subresources": {"status": {}},
"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`, group, version, kind, plural, scope, strings.ToLower(kind))
}

// TestServerTakes gives every set's objects to an API server, and the pods of
// its Deployments to a namespace that allows the least.
func TestServerTakes(t *testing.T) {
	c := kubetest.Client(t)
	place(t, c, namespace, "team-a", "team-b")
	for _, text := range operators {
		kubetest.Apply(t, c, "", text)
	}
	for _, kind := range []string{"ServiceMonitor", "PrometheusRule", "PodMonitor"} {
		kubetest.Eventually(t, func() string {
			u := &unstructured.UnstructuredList{}
			u.SetAPIVersion("monitoring.coreos.com/v1")
			u.SetKind(kind + "List")
			if err := c.List(t.Context(), u); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	for name, set := range values {
		t.Run(name, func(t *testing.T) {
			objects := kubetest.Parse(t, render(t, set))
			install(t, c, objects, true)
			pods, pickers := 0, 0
			for _, u := range objects {
				if u.GetKind() != "Deployment" {
					continue
				}
				if pods++; strings.HasSuffix(u.GetName(), "-endpoint-picker") {
					pickers++
				}
				template, _, _ := unstructured.NestedMap(u.Object, "spec", "template")
				pod := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(template)}
				pod.SetAPIVersion("v1")
				pod.SetKind("Pod")
				pod.SetNamespace(namespace)
				pod.SetName("one")
				_ = unstructured.SetNestedField(pod.Object, "", "spec", "priorityClassName") // whose priority only a system namespace may have
				if err := c.Create(t.Context(), pod, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
					t.Errorf("a pod of %s: %v", u.GetName(), err)
				}
			}
			if less := strings.Count(set, "gateway: {enabled: false}"); pods != pickers+2-less {
				t.Errorf("%d Deployments", pods)
			}
		})
	}
}

// TestCRDs: the chart's definitions are ours, and stay unless that is not wanted.
func TestCRDs(t *testing.T) {
	ours, err := crds.Ours()
	if err != nil {
		t.Fatal(err)
	}
	for set, keep := range map[string]string{"": "keep", "crds: {keep: false}": ""} {
		var got []string
		for _, u := range kubetest.Parse(t, render(t, set)) {
			if u.GetKind() != "CustomResourceDefinition" {
				continue
			}
			got = append(got, u.GetName())
			if have := u.GetAnnotations()["helm.sh/resource-policy"]; have != keep {
				t.Errorf("%s: policy %q with %q", u.GetName(), have, set)
			}
			i := slices.IndexFunc(ours, func(o *unstructured.Unstructured) bool { return o.GetName() == u.GetName() })
			if i < 0 || fmt.Sprint(ours[i].Object["spec"]) != fmt.Sprint(u.Object["spec"]) {
				t.Errorf("%s is not what go generate wrote", u.GetName())
			}
		}
		if len(got) != len(ours) {
			t.Errorf("%v", got)
		}
	}
}
