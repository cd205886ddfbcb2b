package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
)

// Manifest is a file of manifests, or what a cluster has.
type Manifest struct {
	Name string
	Data []byte
	// Folder is where relative paths of models start, an absolute path; "" for what a
	// cluster has.
	Folder string
}

// Manifests makes services of ours of another project's, on a platform. A manifest
// that ours cannot say the same as stays as it is: Roundhouse reads it as well.
func Manifests(of service.Dialect, manifests []Manifest, platform dialect.Platform) *Migration {
	out := &Migration{}
	taken := names{}
	for _, m := range manifests {
		read := dialect.Read(m.Name, m.Data)
		for _, p := range read.Errors(platform) {
			out.leave("%s", p)
		}
		warnings := read.Warnings(platform)
		for i, o := range read.Objects {
			if o.Origin.Dialect() != of || failed(read.Errors(platform), read.Objects, i) {
				continue
			}
			d := Document{From: fmt.Sprintf("%s:%d, %s %s", m.Name, o.Origin.Line, o.Origin.Kind, o.Key)}
			d.Name = taken.take(o.HubKind() + "-" + o.Key.Name)
			for _, w := range within(warnings, read.Objects, i) {
				d.note("%s: %s", w.Path, w.Message)
			}
			write(&d, o, m.Folder)
			out.Documents = append(out.Documents, d)
		}
	}
	return out
}

// within are the problems of the lines of one object.
func within(problems []dialect.Problem, objects []dialect.Object, i int) (out []dialect.Problem) {
	first, last := objects[i].Origin.Line, objects[i].Origin.Line+strings.Count(string(objects[i].Original), "\n")
	for _, p := range problems {
		if p.Line >= first && p.Line <= last {
			out = append(out, p)
		}
	}
	return out
}

func failed(errors []dialect.Problem, objects []dialect.Object, i int) bool {
	return len(within(errors, objects, i)) > 0
}

// write puts a service into our own kind if that says all that the manifest does,
// else the manifest as it is.
func write(d *Document, o dialect.Object, folder string) {
	d.Original = o.Original
	defer func() {
		if s := o.Service; d.Original != nil && s != nil && s.Model != nil && folder != "" && s.Model.URI != dialect.ResolveFile(s.Model.URI, folder) {
			d.note("its relative path %s starts at the folder of the manifest: keep it in %s", s.Model.URI, folder)
		}
	}()
	if o.Kind != dialect.KindService {
		d.note("it stays as it is: Roundhouse reads %s of %s", o.Origin.Kind, o.Origin.APIVersion)
		return
	}
	wanted := settledOf(o.Service)
	if folder != "" && wanted.Model != nil {
		wanted.Model.URI = dialect.ResolveFile(wanted.Model.URI, folder)
	}
	text, err := rendered(own.Write(wanted))
	if err != nil {
		d.note("it stays as it is: %s", err)
		return
	}
	back := dialect.Read(d.Name, []byte(text))
	if len(back.Objects) != 1 || back.Objects[0].Service == nil {
		why := "our own kind cannot say the same"
		if errs := back.Errors(dialect.AnyPlatform); len(errs) > 0 {
			why = errs[0].Path + " " + errs[0].Message
		}
		d.note("it stays as it is: %s", why)
		return
	}
	if lost := different(wanted, settledOf(back.Objects[0].Service)); len(lost) > 0 {
		d.note("it stays as it is: our own kind has no counterpart of %s", strings.Join(lost, ", "))
		return
	}
	if r := o.Service.Runtime; r != nil && r.Implied {
		d.note("the runtime %s, which this schema implies, is not named: the best one for the format is chosen, as `roundhouse explain` shows", r.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Service.Annotations)) {
		if _, kept := wanted.Annotations[name]; !kept {
			d.note("annotation %s: what it says is in fields, as far as it has an effect", name)
		}
	}
	d.Original, d.Objects = nil, []any{own.Write(wanted)}
}

// emptyMain is a container that states nothing.
var emptyMain = corev1.Container{Name: "main"}

// settledOf is what a service says, whatever kind it is written in.
func settledOf(in *service.Service) *service.Service {
	s := *in
	s.Origin, s.ProtocolDefault = service.Origin{}, ""
	s.Protocol = in.Protocol
	if s.Protocol == "" {
		s.Protocol = in.ProtocolDefault
	}
	if s.Runtime != nil && s.Runtime.Implied {
		s.Runtime = nil
	}
	s.Annotations = map[string]string{}
	for name, value := range in.Annotations {
		if _, known := kserve.Annotations[name]; !known && !strings.HasPrefix(name, "autoscaling.knative.dev/") {
			s.Annotations[name] = value
		}
	}
	if in.Model != nil {
		model := *in.Model
		s.Model = &model
	}
	s.Components = service.Components{}
	for _, role := range service.Roles {
		c := in.Components.Get(role)
		if c == nil {
			continue
		}
		part := *c
		part.Pod = *c.Pod.DeepCopy()
		for i := range part.Pod.Containers {
			if part.Pod.Containers[i].Name == part.Main {
				part.Pod.Containers[i].Name = "main"
			}
		}
		if part.Main != "" {
			part.Main = "main"
		}
		if len(part.Pod.Containers) == 1 && reflect.DeepEqual(part.Pod.Containers[0], emptyMain) {
			part.Pod.Containers = nil
		}
		if len(part.Pod.Containers) == 0 {
			part.Main = ""
		}
		s.Components.Set(role, &part)
	}
	return &s
}

// different are the fields in which two services differ.
func different(a, b *service.Service) []string {
	var out []string
	var walk func(path string, a, b any)
	walk = func(path string, a, b any) {
		am, aMap := a.(map[string]any)
		bm, bMap := b.(map[string]any)
		if !aMap || !bMap {
			if !reflect.DeepEqual(a, b) && len(out) < maxNotes {
				out = append(out, path)
			}
			return
		}
		all := maps.Clone(am)
		maps.Copy(all, bm)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			walk(strings.TrimPrefix(path+"."+name, "."), am[name], bm[name])
		}
	}
	walk("", plain(a), plain(b))
	return out
}

// plain is a service as JSON has it, without what states nothing.
func plain(s *service.Service) map[string]any {
	raw, err := json.Marshal(s)
	var out map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	pruned(out)
	dropEmpty(out)
	return out
}

// dropEmpty removes empty mappings and lists.
func dropEmpty(v map[string]any) {
	for key, field := range v {
		if m, ok := field.(map[string]any); ok {
			if dropEmpty(m); len(m) == 0 && key != "emptyDir" {
				delete(v, key)
			}
		}
		if l, ok := field.([]any); ok && len(l) == 0 {
			delete(v, key)
		}
	}
}
