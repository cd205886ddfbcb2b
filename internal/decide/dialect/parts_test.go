package dialect

import (
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestSeveralURIs: where the files of each of KServe's storageUris lie, and what is said
// of them on either platform.
func TestSeveralURIs(t *testing.T) {
	const model, custom = "model: {modelFormat: {name: sklearn}}", "containers: [{name: kserve-container, image: example.com/x}]"
	const claimed, outside = "a claim is mounted, and the files of spec.predictor.storageUris[0] cannot lie", "is a path of containers"
	for _, c := range []struct {
		predictor, uris string
		uri, parts      string
		says            string // one thing of all that is said, with the platform
	}{
		{model, `{uri: "s3://a/b"}`, "s3://a/b", "[]", ""},
		{model, `{uri: "s3://a/b", mountPath: /mnt/models/}`, "s3://a/b", "[]", ""},
		{model, `{uri: "s3://a/b", mountPath: /mnt/models/x}`, "s3://a/b", "[{s3://a/b /mnt/models/x}]", ""},
		{model, `{uri: "s3://a/b", mountPath: /mnt/models/x}, {uri: "oci+native://r/m", mountPath: /mnt/models/y}`, "s3://a/b", "[{s3://a/b /mnt/models/x} {oci://r/m /mnt/models/y}]", ""},
		{custom, `{uri: "s3://a/b", mountPath: /mnt/models/x}`, "s3://a/b", "[{s3://a/b /mnt/models/x}]", ""},
		{model, `{uri: "s3://a/b"}, {uri: "s3://a/c"}`, "s3://a/b", "[{s3://a/b /mnt/models} {s3://a/c /mnt/models}]", ""},
		{model, `{uri: "s3://a/b"}, {uri: "s3://a/c", mountPath: /mnt/models/c}`, "s3://a/b", "[{s3://a/b /mnt/models} {s3://a/c /mnt/models/c}]", ""},
		{model, `{uri: "s3://a/b"}, {uri: "pvc://a/c", mountPath: /mnt/models/c}`, "s3://a/b", "[{s3://a/b /mnt/models} {pvc://a/c /mnt/models/c}]", "kubernetes false " + claimed},
		{model, `{uri: "s3://a/b", mountPath: /opt/m}`, "s3://a/b", "[{s3://a/b /opt/m}]", "process true " + outside},
	} {
		got := Read("a.yaml", []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec:\n  predictor:\n    "+
			c.predictor+"\n    storageUris: ["+c.uris+"]\n"))
		if len(got.Objects) != 1 || got.Objects[0].Service == nil {
			t.Errorf("%s: %v", c.uris, got.Problems)
			continue
		}
		o := got.Objects[0]
		if m := o.Service.Model; m.URI != c.uri || fmt.Sprint(m.Parts) != c.parts {
			t.Errorf("%s: %s %v, want %s %s", c.uris, m.URI, m.Parts, c.uri, c.parts)
		}
		if uris := o.ModelURIs(); len(uris) != max(1, len(o.Service.Model.Parts)) {
			t.Errorf("%s: files %v", c.uris, uris)
		}
		said := ""
		for _, p := range got.Problems {
			if one := strings.ToLower(fmt.Sprint(p.Platform, " ", p.Warning, " ")) + p.Message; said == "" || strings.HasPrefix(one, c.says) {
				said = one
			}
		}
		if c.says == "" && said != "" || !strings.HasPrefix(said, c.says) {
			t.Errorf("%s: %q, want %q", c.uris, said, c.says)
		}
	}
}

// TestFilesBeside: a transformer and an explainer have files of their own, of which the
// same is said as of a predictor's.
func TestFilesBeside(t *testing.T) {
	const container = "containers: [{name: kserve-container, image: example.com/x}]"
	for _, c := range []struct {
		uris, parts string
		says        string // a part of what is said, with ROLE for the component
	}{
		{`{uri: "s3://a/b"}`, "[{s3://a/b /mnt/models}]", ""},
		{`{uri: "s3://a/b"}, {uri: "oci+native://r/m", mountPath: /mnt/models/y/}`, "[{s3://a/b /mnt/models} {oci://r/m /mnt/models/y}]", ""},
		{`{uri: words.txt, mountPath: /opt/m}`, "[{words.txt /opt/m}]", "spec.ROLE.storageUris[0].mountPath: is a path of containers"},
		{`{uri: "s3://a/b"}, {uri: "pvc://a/c"}`, "[{s3://a/b /mnt/models} {pvc://a/c /mnt/models}]",
			"spec.ROLE.storageUris[1]: a claim is mounted, and the files of spec.ROLE.storageUris[0] cannot lie"},
		{`{uri: "storage://a/b"}`, "", "spec.ROLE.storageUris[0].uri: nothing fetches from storage://"},
		{`{uri: "s3://a/b", mountPath: /mnt/models/../x}`, "", `spec.ROLE.storageUris[0].mountPath: "/mnt/models/../x" is no folder of a container`},
		{`{uri: "s3://a/b", mountPath: /a}, {uri: "s3://a/b", mountPath: /b}`, "", "spec.ROLE.storageUris: the mountPaths have no folder in common but /"},
	} {
		for _, role := range []string{"transformer", "explainer"} {
			got := Read("a.yaml", []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec:\n  predictor: {"+container+
				"}\n  "+role+":\n    "+container+"\n    storageUris: ["+c.uris+"]\n"))
			said := ""
			for _, p := range got.Problems {
				said += p.Path + ": " + p.Message + "\n"
			}
			if want := strings.ReplaceAll(c.says, "ROLE", role); want == "" && said != "" || !strings.Contains(said, want) {
				t.Errorf("%s of a %s: %q, want %q", c.uris, role, said, want)
			}
			if c.parts == "" {
				if len(got.Errors(Process)) == 0 {
					t.Errorf("%s of a %s: accepted", c.uris, role)
				}
				continue
			}
			o := got.Objects[0]
			if parts := o.Service.Components.Get(service.Role(role)).Parts; fmt.Sprint(parts) != c.parts || o.Service.Model != nil {
				t.Errorf("%s of a %s: %v, want %s", c.uris, role, parts, c.parts)
			}
			if uris := o.ModelURIs(); len(uris) != strings.Count(c.uris, "uri:") {
				t.Errorf("%s of a %s: files %v", c.uris, role, uris)
			}
		}
	}
}

// TestFilesOfKnownExplainers: the storageUri of KServe's own explainers is that of their
// files, and they are told where these lie before their type.
func TestFilesOfKnownExplainers(t *testing.T) {
	for _, c := range []struct{ explainer, parts, args, says string }{
		{`alibi: {type: AnchorTabular, storageUri: "gs://a/b", config: {threshold: "0.9"}, args: [--more]}`, "[{gs://a/b /mnt/models}]", "[--storage_uri /mnt/models AnchorTabular --threshold 0.9 --more]", ""},
		{`alibi: {type: AnchorText}`, "[]", "[AnchorText]", ""},
		{`art: {type: SquareAttack, storageUri: "oci+native://r/m"}`, "[{oci://r/m /mnt/models}]", "[--storage_uri /mnt/models --adversary_type SquareAttack]", ""},
		{`alibi: {type: AnchorText, storageUri: "storage://a/b"}`, "", "", "spec.explainer.alibi.storageUri: nothing fetches from storage://"},
		{`alibi: {type: AnchorText, storageUri: "s3://a/b"}, storageUris: [{uri: "s3://a/c"}]`, "", "", "spec.explainer.alibi.storageUri: and the explainer's storageUris both say"},
		{`alibi: {type: AnchorText, storage: {path: b}}`, "[{storage://b /mnt/models}]", "[--storage_uri /mnt/models AnchorText]", ""},
		{`alibi: {type: AnchorText, storage: {key: k, path: /b, parameters: {type: s3, bucket: a}}}`, "[{s3://a/b /mnt/models}]", "[--storage_uri /mnt/models AnchorText]", ""},
		{`alibi: {type: AnchorText, storage: {path: b, parameters: {type: ftp, bucket: a}}}`, "[{ftp://a/b /mnt/models}]", "[--storage_uri /mnt/models AnchorText]", "spec.explainer.alibi.storage.parameters.type: is fetched by a ClusterStorageContainer that supports ftp://"},
		{`alibi: {type: AnchorText, storageUri: "s3://a/b", storage: {path: b}}`, "", "", "spec.explainer.alibi.storage: and storageUri both say"},
		{`alibi: {type: AnchorText, storage: {path: b}}, storageUris: [{uri: "s3://a/c"}]`, "", "", "spec.explainer.alibi.storage: and the explainer's storageUris both say"},
	} {
		got := Read("a.yaml", []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec:\n  predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/m}}\n  explainer: {"+c.explainer+"}\n"))
		said := ""
		for _, p := range got.Problems {
			said += p.Path + ": " + p.Message + "\n"
		}
		if c.says == "" && said != "" || !strings.Contains(said, c.says) {
			t.Errorf("%s: %q, want %q", c.explainer, said, c.says)
		}
		if c.parts == "" {
			if len(got.Errors(Process)) == 0 {
				t.Errorf("%s: accepted", c.explainer)
			}
			continue
		}
		if len(got.Objects) != 1 {
			t.Errorf("%s: %v", c.explainer, got.Problems)
			continue
		}
		e := got.Objects[0].Service.Components.Explainer
		if fmt.Sprint(e.Parts) != c.parts || fmt.Sprint(e.Pod.Containers[0].Args) != c.args || !e.Subcommand {
			t.Errorf("%s: %v %v, want %s %s", c.explainer, e.Parts, e.Pod.Containers[0].Args, c.parts, c.args)
		}
	}
}

// TestAuthoritiesOfConfigMaps: a ConfigMap with the authorities of a store is kept.
func TestAuthoritiesOfConfigMaps(t *testing.T) {
	manifest := func(text string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca}\ndata: {cabundle.crt: \"" + text + "\"}\n"
	}
	const pem = "-----BEGIN CERTIFICATE-----"
	got := Read("a.yaml", []byte(manifest(pem)))
	if len(got.Objects) != 1 || len(got.Problems) > 0 || got.Objects[0].ConfigMap.Authorities != pem {
		t.Errorf("%+v", got)
	}
	if got := Read("a.yaml", []byte(manifest("no"))); len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Message, "no certificate in PEM") {
		t.Errorf("%v", got.Problems)
	}
}
