package fleet_test

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestModelCaches: a service's model is fetched as the cache of its URI says, in the
// namespaces that the cache serves, while there is one.
func TestModelCaches(t *testing.T) {
	r := newRig(t)
	const keys = `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: downloader, namespace: kserve-localmodel-jobs}
secrets: [{name: keys}]
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: kserve-localmodel-jobs}
stringData: {AWS_ACCESS_KEY_ID: a, AWS_SECRET_ACCESS_KEY: b}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: downloader, namespace: team}
secrets: [{name: team-keys}]
`
	cache := func(kind, where, account string) string {
		return "---\napiVersion: serving.kserve.io/v1alpha1\nkind: " + kind + "\nmetadata: {name: oak" + where + "}\nspec: {sourceModelUri: 's3://models/oak', modelSize: 1Gi, nodeGroups: [g]" + account + "}\n"
	}
	asks := func(namespace, name, uri, annotations string) string {
		return `---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `, namespace: ` + namespace + `, annotations: {` + annotations + `}}
spec: {model: {uri: "` + uri + `", format: {name: tree, version: "1"}}, engine: {containers: [{name: main, image: "example.com/oak:1"}]}}
`
	}
	check := func(name, want string) {
		t.Helper()
		r.reconcile(name)
		m := r.store.records[key(name)].Revision.Model
		if got := m.Credentials.Of(m.URI); got.Namespace+"/"+got.Account != want {
			t.Errorf("%s is fetched with %+v, want %s", name, got, want)
		}
	}
	const disabled = `serving.kserve.io/disable-localmodel: "true"`
	r.apply(keys + cache("LocalModelCache", "", ", serviceAccountName: downloader") +
		asks("default", "a", "s3://models/oak", "") + asks("default", "b", "s3://models/elm", "") + asks("team", "c", "s3://models/oak", "") + asks("team", "d", "s3://models/oak", disabled))
	check("default/a", "kserve-localmodel-jobs/downloader")
	check("default/b", "/")
	check("team/c", "kserve-localmodel-jobs/downloader")
	check("team/d", "/")

	r.apply(cache("LocalModelNamespaceCache", ", namespace: team", ", serviceAccountName: downloader"))
	check("team/c", "team/downloader")
	check("default/a", "kserve-localmodel-jobs/downloader")
	own := r.Objects(fleet.CacheKind)
	if len(own) != 2 {
		t.Fatalf("%+v", own)
	}
	if f := r.CacheFiles(own[1].ModelCache); f.URI != "s3://models/oak" || f.Namespace != "team" || len(f.Secrets) != 1 {
		t.Errorf("%+v", f)
	}
	using := r.CacheServices(own[0].ModelCache)
	if len(using) != 2 || using[0].Object.Key != key("default/a") || using[1].Object.Key != key("team/c") {
		t.Errorf("%+v", using)
	}

	r.restart()
	if len(r.Objects(fleet.CacheKind)) != 2 {
		t.Error("the caches are lost")
	}
	for _, k := range []service.Key{{Name: "oak"}, {Namespace: "team", Name: "oak"}} {
		if err := r.Delete(t.Context(), fleet.ID{Kind: fleet.CacheKind, Key: k}); err != nil {
			t.Error(err)
		}
	}
	check("default/a", "/")
	check("team/c", "/")
}

// TestModelCacheRoom: on a cluster a model counts once for each namespace that keeps it, on
// one machine once.
func TestModelCacheRoom(t *testing.T) {
	for cluster, want := range map[bool]string{true: "spec.modelSize: 6Gi do not fit", false: ""} {
		r := newRig(t)
		r.cluster = cluster
		r.restart()
		text := "apiVersion: serving.kserve.io/v1alpha1\nkind: LocalModelNodeGroup\nmetadata: {name: g}\nspec: {storageLimit: 10Gi, persistentVolumeSpec: {local: {path: /models}}}\n"
		for _, ns := range []string{"one", "two"} {
			text += "---\napiVersion: serving.kserve.io/v1alpha1\nkind: LocalModelNamespaceCache\nmetadata: {name: oak, namespace: " + ns + "}\nspec: {sourceModelUri: 's3://models/oak', modelSize: 6Gi, nodeGroups: [g]}\n"
		}
		r.apply(text)
		_, problems := r.CacheNodes()
		if got := problems[key("two/oak")]; problems[key("one/oak")] != "" || !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("cluster %v: %v", cluster, problems)
		}
	}
}
