//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// models are the stores that TestModels has, on the node's own network.
type models struct {
	*product
	s3     *objectStore
	web    *webStore
	google *googleStore
	hub    *hubtest.Hub
	iris   []byte
}

// fetched is the namespace whose services fetch models.
const fetched = "fetched"

// TestModels has pods fetch models from every kind of store, with credentials as
// people write them, and answer with them.
func TestModels(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	m := openStores(t, p)
	with := func(run func(context.Context, *models)) func(context.Context, *product) {
		return func(ctx context.Context, _ *product) { run(ctx, m) }
	}
	p.live(t, []string{"Install"}, []step{
		{"Install", 0, with(modelsInstall)},
		{"HTTPS", 0, with(fromHTTPS)},
		{"Slowly", 0, with(slowly)},
		{"S3", 0, with(fromS3)},
		{"SeveralURIs", 0, with(fromSeveral)},
		{"S3KServeNames", 0, with(fromS3KServe)},
		{"StorageConfig", 0, with(fromStorageConfig)},
		{"GoogleEmulator", 0, with(fromGoogleEmulator)},
		{"GoogleAccount", 0, with(fromGoogle)},
		{"HuggingFace", 0, with(fromHub)},
		{"BesideTheImage", 0, with(besideTheImage)},
		{"SharedOnTheNode", 0, with(sharedOnTheNode)},
		{"Internal", 0, with(fromInside)},
		{"Uninstall", 0, with(modelsUninstall)},
	})
}

// openStores starts the stores, all of which hold the model of the quickstart.
func openStores(t *testing.T, p *product) *models {
	t.Helper()
	iris, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	m := &models{product: p, iris: iris, s3: openS3(t), google: openGoogle(t), web: openWeb(t, iris)}
	m.s3.put(t, "iris/iris.ubj", iris)
	m.google.put("iris/iris.ubj", iris)
	if m.hub, err = hubtest.NewAt(node.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.hub.Close)
	m.hub.Token("hf_right")
	m.hub.Add("models", "org/iris").Commit("main", map[string][]byte{"iris.ubj": iris}, "iris.ubj")
	repo := m.hub.Add("models", "org/gated")
	repo.Commit("main", map[string][]byte{"iris.ubj": iris}, "iris.ubj")
	repo.Gate("hf_right")
	return m
}

// modelsValues are the chart's.
const modelsValues = `
image: {repository: roundhouse.local/roundhouse, tag: e2e, pullPolicy: Never}
adopt: [kserve]
installCRDs: [kserve]
controller: {replicas: 1, resources: {requests: {cpu: 50m}}}
gateway: {replicas: 1, url: "http://{name}.{namespace}.` + domain + `", resources: {requests: {cpu: 50m}}}
`

// modelsInstall installs Roundhouse with a cache of the Hub beside it.
func modelsInstall(ctx context.Context, m *models) {
	manifests, err := chart(ctx, modelsValues)
	m.do(err)
	m.do(m.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: "+fetched+"}\n---\n"+manifests))
	m.do(m.ApplyYAML(ctx, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hub-cache, namespace: `+fetched+`}
spec:
  selector: {matchLabels: {app: hub-cache}}
  template:
    metadata: {labels: {app: hub-cache}}
    spec:
      containers:
      - name: cache
        image: `+node.Image+`
        imagePullPolicy: Never
        args: [hub-cache, --listen, "0.0.0.0:8083", --dir, /data/hub, --upstream, "`+m.hub.URL+`"]
        readinessProbe: {httpGet: {path: /healthz, port: 8083}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: hub-cache, namespace: `+fetched+`}
spec: {selector: {app: hub-cache}, ports: [{port: 8083}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: authority, namespace: `+fetched+`}
data:
  ca.crt: |
`+indent(m.web.authority, "    ")))
	for _, d := range []string{controller, gateway} {
		m.do(m.AwaitRollout(ctx, system, d))
	}
	m.do(m.AwaitRollout(ctx, fetched, "hub-cache"))
	var s corev1.Service
	m.do(m.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	m.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// modelsUninstall takes the product away, and what it served.
func modelsUninstall(ctx context.Context, m *models) {
	_, err := m.Kubectl(ctx, "delete", "namespace", fetched, "--wait")
	m.do(err)
	manifests, err := chart(ctx, modelsValues)
	m.do(err)
	m.do(m.DeleteYAML(ctx, manifests))
	m.gone(ctx)
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) + "\n"
}

// answers waits until a service is ready and has it predict.
func (m *models) answers(ctx context.Context, kind schema.GroupVersionKind, name string) {
	m.t.Helper()
	u := m.awaitReady(ctx, kind, fetched, name)
	request{m.address, m.host(u), "/v2/models/" + name + "/infer", irisTensor, predicts(irisClass, 3)}.must(m.t)
}

// complains waits until a service that is not ready says all of some words, and
// gives what it says.
func (m *models) complains(ctx context.Context, kind schema.GroupVersionKind, name string, words ...string) string {
	m.t.Helper()
	u := m.await(ctx, kind, fetched, name, fmt.Sprintf("not ready, with the words %q", words), func(u *unstructured.Unstructured) bool {
		c := condition(u, "Ready")
		message, _ := c["message"].(string)
		for _, w := range words {
			if !strings.Contains(message, w) {
				return false
			}
		}
		return c["status"] != "True"
	})
	message, _ := condition(u, "Ready")["message"].(string)
	m.t.Logf("%s says: %s", name, message)
	return message
}

// predictor is a KServe service over the model at uri; more is what its
// predictor and its model say besides, in flow style.
func predictor(name, uri, more, model string) string {
	return fmt.Sprintf(`
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s, namespace: %s}
spec:
  predictor: {minReplicas: 1%s, model: {modelFormat: {name: xgboost}, protocolVersion: v2%s%s}}
`, name, fetched, more, uri, model)
}

func uri(at string) string { return `, storageUri: "` + at + `"` }

// fromHTTPS: the authority of a server's certificate is of the namespace's own,
// and the server wants a header, which a secret of KServe's holds.
func fromHTTPS(ctx context.Context, m *models) {
	secret := func(token string) string {
		return `
apiVersion: v1
kind: Secret
metadata: {name: web, namespace: ` + fetched + `}
stringData: {https-host: "` + node.Address + `", headers: '{"Authorization": "Bearer ` + token + `"}'}
`
	}
	account := "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: " + fetched + "}\nsecrets: [{name: web}]\n"
	pod := ", serviceAccountName: web, volumes: [{name: ca, configMap: {name: authority}}]"
	m.do(m.ApplyYAML(ctx, secret("wrong")+account+
		predictor("web", uri(m.web.url+"/iris.ubj"), pod, `, env: [{name: SSL_CERT_FILE, value: /etc/ca/ca.crt}], volumeMounts: [{name: ca, mountPath: /etc/ca}]`)+
		predictor("distrust", uri(m.web.url+"/iris.ubj"), pod, "")))
	m.complains(ctx, kserveService, "web", "the model cannot be fetched", "401 Unauthorized")
	m.complains(ctx, kserveService, "distrust", "the model cannot be fetched", "unknown authority", "SSL_CERT_FILE")
	m.do(m.ApplyYAML(ctx, secret("right")))
	m.answers(ctx, kserveService, "web")
	m.do(m.DeleteYAML(ctx, predictor("web", "", "", "")+predictor("distrust", "", "", "")))
}

// slowly: while a model is fetched the service says that, and the log how far.
func slowly(ctx context.Context, m *models) {
	m.do(m.ApplyYAML(ctx, predictor("slow", uri(m.web.plain+"/slow.ubj"), "", "")))
	m.complains(ctx, kserveService, "slow", "fetching the model")
	close(m.web.release)
	m.answers(ctx, kserveService, "slow")
	m.do(m.DeleteYAML(ctx, predictor("slow", "", "", "")))
}

// s3Secret are access keys under the given names.
func s3Secret(name, id, secret, key string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData: {%s: %s, %s: %s}\n", name, fetched, id, s3Key, secret, key)
}

// s3Account lists a secret, and says where the store is as KServe's users do.
func s3Account(name, annotations string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: %s
  namespace: %s
  annotations: {serving.kserve.io/s3-region: %s, %s}
secrets: [{name: %[1]s}]
`, name, fetched, s3Region, annotations)
}

// fromS3: with a wrong key the service says so, with the right one it serves,
// and nobody touches the service for that.
func fromS3(ctx context.Context, m *models) {
	const id, secret = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
	m.do(m.ApplyYAML(ctx, s3Secret("s3", id, secret, "wrong")+s3Account("s3", `serving.kserve.io/s3-endpoint: "`+m.s3.address+`", serving.kserve.io/s3-usehttps: "0"`)+predictor("s3", uri("s3://models/iris"), ", serviceAccountName: s3", "")))
	said := m.complains(ctx, kserveService, "s3", "the model cannot be fetched", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY is not the secret of AWS_ACCESS_KEY_ID", "the service account s3, which lists s3")
	if strings.Contains(said, "wrong") {
		m.t.Errorf("it shows the key: %s", said)
	}
	m.do(m.ApplyYAML(ctx, s3Secret("s3", id, secret, s3SecretKey)))
	began := time.Now()
	m.answers(ctx, kserveService, "s3")
	m.t.Logf("healed %.1f s after its secret was mended", time.Since(began).Seconds())
	m.do(m.DeleteYAML(ctx, predictor("s3", "", "", "")))
}

// fromSeveral: files of several URIs lie in one folder and within it, and what two of
// them bring is told.
func fromSeveral(ctx context.Context, m *models) {
	for name, content := range map[string]string{"more/labels.txt": "setosa", "notes/notes.txt": "of 1936", "same/iris.ubj": "another"} {
		m.s3.put(m.t, name, []byte(content))
	}
	several := func(second string) string {
		return `, serviceAccountName: s3, storageUris: [{uri: "s3://models/iris"}, {uri: "` + second + `"}, {uri: "s3://models/notes", mountPath: /mnt/models/notes}]`
	}
	m.do(m.ApplyYAML(ctx, predictor("several", "", several("s3://models/more"), "")+predictor("twice", "", several("s3://models/same"), "")))
	m.answers(ctx, kserveService, "several")
	m.complains(ctx, kserveService, "twice", "s3://models/iris and s3://models/same both have /mnt/models/iris.ubj", "give each URI a mountPath of its own")
	m.do(m.DeleteYAML(ctx, predictor("several", "", "", "")+predictor("twice", "", "", "")))
}

// fromS3KServe: the keys under KServe's own names for them, from a store whose
// authority a ConfigMap has.
func fromS3KServe(ctx context.Context, m *models) {
	m.do(m.ApplyYAML(ctx, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: store-authority, namespace: "+fetched+"}\ndata:\n  cabundle.crt: |\n"+indent(m.s3.authority, "    ")+
		s3Secret("s3old", "awsAccessKeyID", "awsSecretAccessKey", s3SecretKey)+
		s3Account("s3old", `serving.kserve.io/s3-endpoint: "`+m.s3.secure+`", serving.kserve.io/s3-cabundle-configmap: store-authority`)+
		predictor("s3old", uri("s3://models/iris/iris.ubj"), ", serviceAccountName: s3old", "")))
	m.answers(ctx, kserveService, "s3old")
	m.do(m.DeleteYAML(ctx, predictor("s3old", "", "", "")))
}

// fromStorageConfig: KServe's storage names a key of a secret that says where
// the store is, its bucket too; without a key, that of its type.
func fromStorageConfig(ctx context.Context, m *models) {
	config := func(secret string) string {
		store := fmt.Sprintf(`"type":"s3","endpoint_url":"http://%s","region":"%s","access_key_id":"%s","secret_access_key":"%s"`, m.s3.address, s3Region, s3Key, secret)
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: storage-config, namespace: " + fetched + "}\nstringData:\n  minio: '{" + store + `,"bucket":"models"}'` +
			"\n  default_s3: '{" + store + `,"bucket":"none"}'` + "\n"
	}
	keyed, byType := ", storage: {key: minio, path: iris}", ", storage: {path: iris/iris.ubj, parameters: {type: s3, bucket: models}}"
	m.do(m.ApplyYAML(ctx, predictor("keyed", keyed, "", "")))
	m.complains(ctx, kserveService, "keyed", `secret "storage-config" not found`)
	m.do(m.ApplyYAML(ctx, config("wrong")))
	m.complains(ctx, kserveService, "keyed", "the model cannot be fetched", "SignatureDoesNotMatch", "the secret storage-config, key minio")
	m.do(m.ApplyYAML(ctx, config(s3SecretKey)+predictor("bytype", byType, "", "")))
	m.answers(ctx, kserveService, "keyed")
	m.answers(ctx, kserveService, "bytype")
	m.do(m.DeleteYAML(ctx, predictor("keyed", keyed, "", "")+predictor("bytype", byType, "", "")))
}

// fromGoogleEmulator: the store is where a variable says.
func fromGoogleEmulator(ctx context.Context, m *models) {
	m.do(m.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: emulated, namespace: `+fetched+`}
spec:
  model: {uri: "gs://models/iris", format: {name: xgboost}}
  engine: {env: [{name: STORAGE_EMULATOR_HOST, value: "`+m.google.emulator+`"}]}
`))
	m.answers(ctx, modelService, "emulated")
	_, err := m.Kubectl(ctx, "delete", "msvc", "emulated", "-n", fetched)
	m.do(err)
}

// fromGoogle: a file of a Google account, in the one secret of the pod's; its
// key signs, the token's server checks, the store wants the token. Both are at
// their own names, which the pod takes for the node.
func fromGoogle(ctx context.Context, m *models) {
	secret := func(file string) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: google, namespace: " + fetched + "}\nstringData:\n  gcloud-application-credentials.json: '" + file + "'\n"
	}
	account := "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: google, namespace: " + fetched + "}\nsecrets: [{name: google}]\n"
	pod := `, serviceAccountName: google, volumes: [{name: ca, configMap: {name: google-authority}}], hostAliases: [{ip: ` + node.Address + `, hostnames: [storage.googleapis.com, oauth2.googleapis.com]}]`
	m.do(m.ApplyYAML(ctx, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: google-authority, namespace: "+fetched+"}\ndata:\n  ca.crt: |\n"+indent(m.google.authority, "    ")+
		secret(m.google.file(m.t, false))+account+
		predictor("google", uri("gs://models/iris"), pod, `, env: [{name: SSL_CERT_FILE, value: /etc/ca/ca.crt}], volumeMounts: [{name: ca, mountPath: /etc/ca}]`)))
	m.complains(ctx, kserveService, "google", "the model cannot be fetched", "give no token: invalid_grant Invalid JWT Signature.")
	m.do(m.ApplyYAML(ctx, secret(m.google.file(m.t, true))))
	m.answers(ctx, kserveService, "google")
	m.do(m.DeleteYAML(ctx, predictor("google", "", "", "")))
	// Where the account lists another secret besides, none is mounted: the file
	// comes as a variable.
	m.do(m.ApplyYAML(ctx, s3Secret("other", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "none")+strings.Replace(account, "[{name: google}]", "[{name: other}, {name: google}]", 1)+
		predictor("google2", uri("gs://models/iris"), pod, `, env: [{name: SSL_CERT_FILE, value: /etc/ca/ca.crt}], volumeMounts: [{name: ca, mountPath: /etc/ca}]`)))
	m.answers(ctx, kserveService, "google2")
	m.do(m.DeleteYAML(ctx, predictor("google2", "", "", "")))
}

// fromHub: a repository that wants a token, by a cache of the Hub in the cluster.
func fromHub(ctx context.Context, m *models) {
	var s corev1.Service
	m.do(m.Get(ctx, client.ObjectKey{Namespace: fetched, Name: "hub-cache"}, &s))
	secret := func(token string) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: hub, namespace: " + fetched + "}\nstringData: {token: " + token + "}\n"
	}
	m.do(m.ApplyYAML(ctx, secret("hf_wrong")+`
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: hub, namespace: `+fetched+`}
spec:
  model: {uri: "hf://org/gated", format: {name: xgboost}}
  engine:
    env:
    - {name: HF_ENDPOINT, value: "http://`+net.JoinHostPort(s.Spec.ClusterIP, "8083")+`"}
    - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
`))
	m.complains(ctx, modelService, "hub", "the model cannot be fetched", "the secret hub, key token (as HF_TOKEN)")
	m.do(m.ApplyYAML(ctx, secret("hf_right")))
	m.answers(ctx, modelService, "hub")
	if m.hub.Sent() < int64(len(m.iris)) {
		m.t.Errorf("the Hub sent %d bytes of %d", m.hub.Sent(), len(m.iris))
	}
	_, err := m.Kubectl(ctx, "delete", "msvc", "hub", "-n", fetched)
	m.do(err)
}

// otherImage is a name of our image that is not ours: what its pods get is what
// those of any other server get.
const otherImage = "roundhouse.local/other:e2e"

// other is a service whose server has an image that is not ours, with metadata
// and fields of its engine besides.
func (m *models) other(ctx context.Context, name, metadata, engine string) *corev1.PodList {
	m.t.Helper()
	m.do(m.Tag(ctx, node.Image, otherImage))
	var s corev1.Service
	m.do(m.Get(ctx, client.ObjectKey{Namespace: fetched, Name: "hub-cache"}, &s))
	m.do(m.ApplyYAML(ctx, `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: `+name+`, namespace: `+fetched+metadata+`}
spec:
  model: {uri: "hf://org/iris", format: {name: xgboost}}
  engine:
`+engine+`    containers:
    - name: main
      image: `+otherImage+`
      imagePullPolicy: Never
      command: [roundhouse-server]
      args: [/mnt/models, --name, "{{.Name}}", --format, xgboost, --host, 0.0.0.0, --http-port, "8080", --grpc-port, "8081"]
      env: [{name: HF_ENDPOINT, value: "http://`+net.JoinHostPort(s.Spec.ClusterIP, "8083")+`"}]
      ports: [{name: http, containerPort: 8080}, {name: grpc, containerPort: 8081}]
      readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}, periodSeconds: 1}
`))
	m.answers(ctx, modelService, name)
	var pods corev1.PodList
	m.do(m.List(ctx, &pods, client.InNamespace(fetched), client.MatchingLabels{"roundhouse.dev/service": name}))
	return &pods
}

// restarted kills the server of a pod, and waits until it is ready again.
func (m *models) restarted(ctx context.Context, name string, pod *corev1.Pod) {
	m.t.Helper()
	m.do(m.KillContainer(ctx, pod.Status.ContainerStatuses[0].ContainerID))
	m.await(ctx, modelService, fetched, name, "the server was started again", func(*unstructured.Unstructured) bool {
		var now corev1.Pod
		return m.Get(ctx, client.ObjectKeyFromObject(pod), &now) == nil && now.Status.ContainerStatuses[0].RestartCount == 1 && now.Status.ContainerStatuses[0].Ready
	})
	m.answers(ctx, modelService, name)
	_, err := m.Kubectl(ctx, "delete", "msvc", name, "-n", fetched)
	m.do(err)
}

// besideTheImage: the model of a server whose image is not ours is fetched by a
// sidecar while that image is pulled, and is still there when the server was killed.
func besideTheImage(ctx context.Context, m *models) {
	pods := m.other(ctx, "beside", "", "")
	if len(pods.Items) != 1 || len(pods.Items[0].Status.InitContainerStatuses) != 2 {
		m.t.Fatalf("%d pods: %+v", len(pods.Items), pods.Items)
	}
	began := map[string]time.Time{}
	for _, c := range pods.Items[0].Status.InitContainerStatuses {
		switch {
		case c.State.Running != nil:
			began[c.Name] = c.State.Running.StartedAt.Time
		case c.State.Terminated != nil:
			began[c.Name] = c.State.Terminated.StartedAt.Time
		}
	}
	if began["roundhouse-model"].IsZero() || began["roundhouse-await"].IsZero() {
		m.t.Errorf("init containers: %v", began)
	}
	m.restarted(ctx, "beside", &pods.Items[0])
}

// sharedOnTheNode: two pods of a node have the same files of a model.
func sharedOnTheNode(ctx context.Context, m *models) {
	store := m.t.TempDir()
	pods := m.other(ctx, "shared", `, annotations: {roundhouse.dev/model-store: "`+store+`"}`, "    scaling: {minReplicas: 2, maxReplicas: 2}\n")
	if len(pods.Items) != 2 {
		m.t.Fatalf("%d pods", len(pods.Items))
	}
	files := map[uint64]int{}
	m.do(filepath.WalkDir(store, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || filepath.Base(path) != "iris.ubj" {
			return err
		}
		info, err := e.Info()
		if err == nil {
			files[info.Sys().(*syscall.Stat_t).Ino]++
		}
		return err
	}))
	if len(files) != 1 {
		m.t.Errorf("files of the model: %v", files)
	}
	m.restarted(ctx, "shared", &pods.Items[0])
}

// fromInside: a URI leads nowhere inside, by what it says or by a redirect,
// until the operator lets it.
func fromInside(ctx context.Context, m *models) {
	var s corev1.Service
	m.do(m.Get(ctx, client.ObjectKey{Namespace: fetched, Name: "hub-cache"}, &s))
	inside := uri("http://" + net.JoinHostPort(s.Spec.ClusterIP, "8083") + "/org/iris/resolve/main/iris.ubj")
	named, led := uri("http://hub-cache."+fetched+".svc:8083/org/iris/resolve/main/iris.ubj"), uri(m.web.plain+"/iris.ubj")
	m.do(m.ApplyYAML(ctx, predictor("inside", inside, "", "")+predictor("named", named, "", "")+predictor("led", led, "", "")))
	m.complains(ctx, kserveService, "inside", "an internal address", "--allow-internal-models")
	m.complains(ctx, kserveService, "named", "an internal address", "--allow-internal-models")
	m.complains(ctx, kserveService, "led", "the model cannot be fetched", "10.96.0.1 is an internal address")
	if pods := m.pods(ctx, fetched, "inside-"); len(pods) > 0 {
		m.t.Errorf("it has %d pods", len(pods))
	}
	_, err := m.Kubectl(ctx, "patch", "deployment", controller, "-n", system, "--type=json",
		"-p", `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--allow-internal-models"}]`)
	m.do(err)
	m.do(m.AwaitRollout(ctx, system, controller))
	m.answers(ctx, kserveService, "inside")
	m.do(m.DeleteYAML(ctx, predictor("inside", "", "", "")+predictor("named", "", "", "")+predictor("led", "", "", "")))
}
