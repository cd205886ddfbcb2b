package dialect

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readKServeRuntime reads a v1alpha1 ServingRuntime or ClusterServingRuntime.
func readKServeRuntime(r *reading, spec *kserveRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.MultiModel = spec.Disabled, spec.MultiModel
	out.Protocols = r.protocols("spec.protocolVersions", spec.ProtocolVersions)
	out.StorageHelperDisabled = spec.StorageHelper != nil && spec.StorageHelper.Disabled
	for i, f := range spec.SupportedModelFormats {
		path := strict.Index("spec.supportedModelFormats", i)
		if f.Name == "" {
			r.errorf(path+".name", "is missing: name the model format")
		}
		out.Formats = append(out.Formats, service.SupportedFormat{
			Format:     service.NamedVersion{Name: f.Name, Version: f.Version},
			AutoSelect: f.AutoSelect, Priority: priority(r, path, f.Priority),
		})
	}
	if len(spec.Containers) == 0 {
		r.errorf("spec.containers", "is missing: say what runs")
	}
	r.containers("spec.containers", spec.Containers)
	engine := &service.Component{Pod: spec.spec(), Labels: spec.Labels, Annotations: spec.Annotations}
	engine.Main = mainOf(engine.Pod.Containers, kserveMain)
	if w := spec.WorkerSpec; w != nil {
		const path = "spec.workerSpec"
		r.containers(path+".containers", w.Containers)
		engine.Worker = node(w.spec(), mainOf(w.Containers, kserveWorkerMain), r.workers(path, &w.kserveParallel))
		if sizes := w.variables(); len(sizes) > 0 {
			engine.Pod.Containers = withEnv(engine.Pod.Containers, engine.Main, sizes)
			engine.Worker.Pod.Containers = withEnv(engine.Worker.Pod.Containers, engine.Worker.Main, sizes)
		}
		r.runtimeLabels(path, w.Labels, w.Annotations)
		out.MultiNode = true
	}
	out.Components.Engine = engine
}

// runtimeLabels warns of a worker's labels and annotations, which have no
// place of their own: the component's are on every node.
func (r *reading) runtimeLabels(path string, labels, annotations map[string]string) {
	if len(labels) > 0 {
		r.warnf(path+".labels", "have no effect: the runtime's are on every node")
	}
	if len(annotations) > 0 {
		r.warnf(path+".annotations", "have no effect: the runtime's are on every node")
	}
}
