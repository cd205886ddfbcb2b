package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type inner struct {
	Deep string `json:"deep"`
	Both int    `json:"both"`
}

type outer struct {
	inner `json:",inline"`

	Both   string                   `json:"both"` // hides inner's
	Flag   *bool                    `json:"flag"`
	Small  int8                     `json:"small"`
	Count  uint                     `json:"count"`
	Ratio  float64                  `json:"ratio"`
	List   []inner                  `json:"list"`
	Map    map[string]inner         `json:"map"`
	Any    any                      `json:"any"`
	Limits corev1.ResourceList      `json:"limits"`
	Port   intstr.IntOrString       `json:"port"`
	When   metav1.Time              `json:"when"`
	Wait   metav1.Duration          `json:"wait"`
	Pause  Duration                 `json:"pause"`
	Env    []corev1.EnvVar          `json:"env"`
	Spec   *corev1.PodSpec          `json:"spec"`
	Skip   string                   `json:"-"`
	Meta   metav1.ObjectMeta        `json:"metadata"`
	Ptr    *map[string]*metav1.Time `json:"ptr"`
}

func decode(t *testing.T, text string) (outer, *Document, []string) {
	t.Helper()
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	var v outer
	doc, problems := Decode(n.Content[0], 0, &v)
	var out []string
	for _, p := range problems {
		out = append(out, fmt.Sprintf("%d:%d %s: %s", p.Line, p.Column, p.Path, p.Message))
	}
	return v, doc, out
}

func TestDecode(t *testing.T) {
	v, doc, problems := decode(t, `
deep: a
both: b
flag: yes
small: -0x10
count: 7
ratio: 1e3
list: [{deep: x, both: 1}, {deep: "2"}]
map: {k.l/m: {deep: y}}
any: {a: [1, 2.5, true, null, z], when: 2020-01-01}
limits: {cpu: 1, memory: 1.5Gi, nvidia.com/gpu: "2"}
port: http
when: 2020-01-02T03:04:05Z
wait: 1m30s
env:
- &e {name: A, value: a}
- {<<: *e, value: b}
- *e
spec: {containers: [{name: c, ports: [{containerPort: 80}]}]}
ptr: {a: 2020-01-02T03:04:05Z}
metadata: ~
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	flag := true
	when := metav1.NewTime(time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC).Local())
	want := outer{
		inner: inner{Deep: "a"}, Both: "b", Flag: &flag, Small: -16, Count: 7, Ratio: 1000,
		List: []inner{{Deep: "x", Both: 1}, {Deep: "2"}},
		Map:  map[string]inner{"k.l/m": {Deep: "y"}},
		Any:  map[string]any{"a": []any{1.0, 2.5, true, nil, "z"}, "when": "2020-01-01"},
		Port: intstr.FromString("http"), When: when, Wait: metav1.Duration{Duration: 90 * time.Second},
		Env:  []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "A", Value: "b"}, {Name: "A", Value: "a"}},
		Spec: &corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}},
		Ptr:  &map[string]*metav1.Time{"a": &when},
		Limits: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1.5Gi"),
			"nvidia.com/gpu": resource.MustParse("2")},
	}
	if !equality.Semantic.DeepEqual(v, want) {
		t.Errorf("got  %+v\nwant %+v", v, want)
	}
	checkPlaces(t, doc)
}

func checkPlaces(t *testing.T, doc *Document) {
	t.Helper()
	for path, want := range map[string]Position{
		"list[1].deep":       {8, 29},
		"map[k.l/m].deep":    {9, 15},
		"map[k.l/m].nothing": {9, 7},
		"map[k.l/m][0].x":    {9, 7},
		"spec.containers[0].ports[0].containerPort": {19, 40},
		"spec.containers[0].ports[7].containerPort": {19, 31},
		"":               {2, 1},
		"nothing.at.all": {2, 1},
	} {
		if got := doc.At(path); got != want {
			t.Errorf("At(%q) = %v, want %v", path, got, want)
		}
	}
	i := slices.IndexFunc(doc.Fields, func(f Field) bool { return f.Path == "deep" })
	if i < 0 || doc.Fields[i].Owner != reflect.TypeFor[inner]() || doc.Fields[i].Name != "deep" {
		t.Errorf("the embedded struct does not own its field: %+v", doc.Fields)
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"flag: 1", "1:7 flag: expected true or false, got the number 1"},
		{`flag: "true"`, `1:7 flag: expected true or false, got "true"`},
		{"small: 200", "1:8 small: expected an integer of 8 bits, got the number 200"},
		{"small: 1.0", "1:8 small: expected an integer, got the number 1.0"},
		{"count: -1", "1:8 count: expected an integer of 64 bits, 0 or more, got the number -1"},
		{"ratio: .nan", "1:8 ratio: expected a number, got the number .nan"},
		{"deep: true", `1:7 deep: expected a string, got the boolean true: write "true" in quotes`},
		{"deep: [a]", "1:7 deep: expected a string, got a list"},
		{"deep: !!binary aGk=", `1:7 deep: expected a string, got "aGk=" with the tag !!binary: write "aGk=" in quotes`},
		{"list: {a: b}", "1:7 list: expected a list, got a mapping"},
		{"list: [a]", `1:8 list[0]: expected a mapping of fields, got "a"`},
		{"map: [a]", "1:6 map: expected a mapping, got a list"},
		{"map: {a: {dep: b}}", `1:11 map[a].dep: unknown field; did you mean "deep"?`},
		{"limits: {cpu: 1x}", `1:15 limits[cpu]: expected a quantity such as 500m, 2 or "16Gi", got "1x"`},
		{"limits: {cpu: {a: b}}", `1:15 limits[cpu]: expected a quantity such as 500m, 2 or "16Gi", got a mapping`},
		{"wait: 90", "1:7 wait: expected a duration such as 90s, 5m or 1h30m, got the number 90: write 90s for seconds"},
		{"pause: 5", "1:8 pause: expected a duration such as 10s or 1m30s, got the number 5: write 5s for seconds"},
		{"when: noon", `1:7 when: expected a time such as 2006-01-02T15:04:05Z, got "noon"`},
		{"port: 1.5", "1:7 port: expected an integer or a string, got the number 1.5"},
		{"Skip: a", `1:1 Skip: unknown field`},
		{"{[a]: b}", "1:2 : a key must be a word, got a list"},
		{"spec: {containers: [{name: c, Image: i}]}", `1:31 spec.containers[0].Image: unknown field; did you mean "image"?`},
		{"env: [{name: a, containers: []}]", "1:17 env[0].containers: unknown field; known here: name, value, valueFrom"},
		{"spec: {labels: {}}", "1:8 spec.labels: unknown field"},
		{"containers: []", "1:1 containers: unknown field here; it belongs in spec: is the indentation right?"},
		{"any: !x y", `1:6 any: expected a plain value, got "y" with the tag !x`},
	} {
		_, _, got := decode(t, c.in)
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

// TestAsJSON decodes values that have no problem as encoding/json does.
func TestAsJSON(t *testing.T) {
	for _, in := range []string{
		`{"deep":"a","small":3,"list":[{"deep":"b"}],"any":{"a":[1,2.5,"x",null,true]}}`,
		`{"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}},"livenessProbe":{"httpGet":{"port":80}}}]}}`,
		`{"metadata":{"name":"n","labels":{"a":"b"},"creationTimestamp":"2020-01-02T03:04:05Z"},"port":8080}`,
	} {
		got, _, problems := decode(t, strings.ReplaceAll(in, "null", "0"))
		var want outer
		if err := json.Unmarshal([]byte(strings.ReplaceAll(in, "null", "0")), &want); err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", in, got, want)
		}
	}
}

// naive is the edit distance by its definition.
func naive(a, b string) int {
	switch {
	case a == "":
		return len(b)
	case b == "":
		return len(a)
	}
	cost := 1
	if a[len(a)-1] == b[len(b)-1] {
		cost = 0
	}
	d := min(naive(a[:len(a)-1], b)+1, naive(a, b[:len(b)-1])+1, naive(a[:len(a)-1], b[:len(b)-1])+cost)
	if len(a) > 1 && len(b) > 1 && a[len(a)-1] == b[len(b)-2] && a[len(a)-2] == b[len(b)-1] {
		d = min(d, naive(a[:len(a)-2], b[:len(b)-2])+1)
	}
	return d
}

func FuzzDistance(f *testing.F) {
	f.Add("name", "nmae")
	f.Add("", "abc")
	f.Add("kitten", "sittin")
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = a[:min(len(a), 6)], b[:min(len(b), 6)]
		if got, want := distance(a, b), naive(a, b); got != want {
			t.Errorf("distance(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func TestNearest(t *testing.T) {
	known := []string{"autoSelect", "name", "priority", "version"}
	for in, want := range map[string]string{
		"autoselect": "autoSelect", "nmae": "name", "prioritty": "priority", "Version": "version",
		"storageUri": "", "x": "", strings.Repeat("a", 1000): "",
	} {
		if got := Nearest(in, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
