package shape

// Labels of every object and pod of a service.
const (
	// LabelManagedBy is "app.kubernetes.io/managed-by", always [Manager].
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelService is the service's name, as [LabelValue] writes it.
	LabelService = "roundhouse.dev/service"
	// LabelRole is the service.Role.
	LabelRole = "roundhouse.dev/role"
	// LabelRevision is workload.Revision.Hash, on pods and on what has a template of them.
	LabelRevision = "roundhouse.dev/revision"
	// LabelRecord is "true" on ControllerRevisions that keep a service's record.
	LabelRecord = "roundhouse.dev/record"
	// LabelPicker is "true" on Services that stand for Roundhouse's own picking of
	// endpoints: its gateways ask nobody where a pool names one of them.
	LabelPicker = "roundhouse.dev/endpoint-picker"

	// LabelAdopt on a namespace names the foreign dialects whose manifests are
	// read there, with a dot between several: "kserve.ome". A label's value has no
	// commas.
	LabelAdopt = "roundhouse.dev/adopt"

	// Manager is the value of LabelManagedBy.
	Manager = "roundhouse"
	// FieldManager owns the fields that are applied.
	FieldManager = "roundhouse-controller"
)

// Annotations of every object of a service.
const (
	// AnnotationService is the workload's name in full (Key.WorkloadName).
	AnnotationService = "roundhouse.dev/service"
	// AnnotationApplied stands for everything an object was rendered from: where
	// it equals that of the object rendered now, there is nothing to write.
	AnnotationApplied = "roundhouse.dev/applied"
)

// Names of a Service's ports.
const (
	PortHTTP = "http"
	PortGRPC = "grpc"
)

// OwnImage as a container's image stands for the image of this program.
const OwnImage = "roundhouse"
