package kserve

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readRuntime reads a v1alpha1 ServingRuntime or ClusterServingRuntime.
func readRuntime(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.MultiModel = spec.Disabled, spec.MultiModel
	out.Protocols = manifest.ReadProtocols(r.Report, "spec.protocolVersions", spec.ProtocolVersions)
	out.StorageHelperDisabled = spec.StorageHelper != nil && spec.StorageHelper.Disabled
	for i, f := range spec.SupportedModelFormats {
		path := strict.Index("spec.supportedModelFormats", i)
		if f.Name == "" {
			r.Errorf(path+".name", "is missing: name the model format")
		}
		out.Formats = append(out.Formats, service.SupportedFormat{
			Format:     service.NamedVersion{Name: f.Name, Version: f.Version},
			AutoSelect: f.AutoSelect, Priority: manifest.Priority(r.Report, path, f.Priority),
		})
	}
	if len(spec.Containers) == 0 {
		r.Errorf("spec.containers", "is missing: say what runs")
	}
	manifest.CheckContainers(r.Report, "spec.containers", spec.Containers)
	CheckAnnotations(r, "metadata.annotations", out.Annotations, OnRuntime)
	CheckAnnotations(r, "spec.annotations", spec.Annotations, OnRuntime)
	engine := &service.Component{Pod: spec.spec(), Labels: spec.Labels, Annotations: spec.Annotations}
	engine.Main = manifest.MainOf(engine.Pod.Containers, mainContainer)
	if w := spec.WorkerSpec; w != nil {
		const path = "spec.workerSpec"
		manifest.CheckContainers(r.Report, path+".containers", w.Containers)
		engine.Worker = manifest.NodeOf(w.spec(), manifest.MainOf(w.Containers, workerContainer), readWorkers(r, path, &w.parallel))
		if sizes := w.variables(); len(sizes) > 0 {
			engine.Pod.Containers = manifest.WithEnv(engine.Pod.Containers, engine.Main, sizes)
			engine.Worker.Pod.Containers = manifest.WithEnv(engine.Worker.Pod.Containers, engine.Worker.Main, sizes)
		}
		manifest.WarnRuntimeLabels(r.Report, path, w.Labels, w.Annotations)
		out.MultiNode = true
	}
	out.Components.Engine = engine
}
