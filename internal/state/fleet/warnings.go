package fleet

import (
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Warnings are those of objects as they are applied: choices left to age and name,
// levels of sleep that an engine lacks, formats that no runtime lists, and benchmarks of
// services and secrets of models that are not there.
func (f *Fleet) Warnings(objects []Object) []string {
	_, tolerated := Conflicts(objects)
	applied := known(f.Objects(runtimeKind), f.cfg.Catalog)
	var services []service.Key
	for _, st := range f.List() {
		services = append(services, st.Object.Key)
	}
	return slices.Concat(tolerated, MissingLevels(objects, f.cfg.Catalog), UnknownFormats(objects, applied), MissingSubjects(objects, services), f.missingSecrets(objects))
}

// MissingSubjects warns of benchmarks of a service that is neither among the objects nor
// one of services.
func MissingSubjects(objects []Object, services []service.Key) (warnings []string) {
	existing := slices.Clone(services)
	for _, o := range objects {
		if o.Service != nil {
			existing = append(existing, o.Key)
		}
	}
	for _, o := range objects {
		if o.Benchmark == nil || o.Benchmark.URL != "" {
			continue
		}
		if why := route.Missing(routing.Service(o.Benchmark.Service), existing, nil); why != "" {
			warnings = append(warnings, o.warning("spec.endpoint.inferenceService: "+why))
		}
	}
	return warnings
}

// missingSecrets warns of models whose secret, which may be missing, is: neither among
// the objects nor applied. On a cluster nobody here knows.
func (f *Fleet) missingSecrets(objects []Object) (warnings []string) {
	if f.cfg.Cluster {
		return nil
	}
	for _, o := range objects {
		if o.Model == nil || o.Model.Secret == nil {
			continue
		}
		by, namespace := *o.Model.Secret, credentials.NamespaceOf(o.Model)
		s, there := f.Secret(service.Key{Namespace: namespace, Name: by.Secret})
		for _, beside := range objects {
			if beside.Secret != nil && beside.Secret.Name == by.Secret && beside.Secret.Namespace == namespace {
				s, there = beside.Secret, true
			}
		}
		has := false
		if there {
			_, has = s.Data[by.Key]
		}
		switch {
		case !there:
			warnings = append(warnings, o.warning(fmt.Sprintf("there is no secret %q in namespace %q: until it is applied, the environment of up counts", by.Secret, namespace)))
		case !has && strings.HasPrefix(strings.ToLower(o.Model.URI), "hf://"):
			warnings = append(warnings, o.warning(fmt.Sprintf("the secret %q in namespace %q has no key %q: the environment of up counts", by.Secret, namespace, by.Key)))
		}
	}
	return warnings
}

// MissingLevels warns of services that are to sleep at a level that their engine does
// not have. That of a service for which a runtime is yet to be chosen is not known.
func MissingLevels(objects []Object, catalog []service.Runtime) (warnings []string) {
	runtimes := known(objects, catalog)
	for _, o := range objects {
		if o.Service == nil {
			continue
		}
		svc := workload.LocalizeService(*o.Service, catalog, selection.Host{})
		var named service.Runtime
		for i := range runtimes {
			if svc.Runtime != nil && runtimes[i].Name == svc.Runtime.Name {
				named = workload.Localize(runtimes[i], catalog, selection.Host{})
			}
		}
		for _, role := range service.Roles {
			if why := workload.MissingLevel(svc.Components.Get(role), named.Components.Get(role)); why != "" {
				warnings = append(warnings, o.warning(string(role)+": scaling.standby: "+why))
			}
		}
	}
	return warnings
}

// UnknownFormats warns of models whose format neither the catalog nor a runtime among the
// objects lists: a name that is misspelt, or one of a runtime that is applied elsewhere.
func UnknownFormats(objects []Object, catalog []service.Runtime) (warnings []string) {
	runtimes := known(objects, catalog)
	for _, o := range objects {
		format := ""
		switch {
		case o.Model != nil && o.Model.FineTuned == nil:
			format = o.Model.Format.Name
		case o.Service != nil && o.Service.Model != nil && !o.Service.Custom:
			format = o.Service.Model.Format.Name
		}
		if why := selection.UnknownFormat(format, runtimes); format != "" && why != "" {
			warnings = append(warnings, o.warning(why))
		}
	}
	return warnings
}

// known are the runtimes of the catalog and of objects.
func known(objects []Object, catalog []service.Runtime) []service.Runtime {
	runtimes := slices.Clone(catalog)
	for _, o := range objects {
		if o.Runtime != nil {
			runtimes = append(runtimes, *o.Runtime)
		}
	}
	return runtimes
}

// warning is one of an object, with its place in the file.
func (o Object) warning(text string) string {
	at := fmt.Sprintf("%s: %s", o.ID(), text)
	if o.Origin.File != "" {
		at = fmt.Sprintf("%s:%d: warning: %s", o.Origin.File, o.Origin.Line, at)
	}
	return at
}
