package shape

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Longest names, in bytes.
const (
	// maxName leaves room for what Kubernetes appends where the whole must fit
	// a label of 63: a group's index of up to five digits with its dash, and the
	// eleven of a StatefulSet's revision.
	maxName       = 46
	maxLabelValue = 63
	maxRecordName = 253
)

// Name is that of a role's Deployment (or LeaderWorkerSet), Service,
// PodDisruptionBudget and HorizontalPodAutoscaler: "{service}-{role}", a DNS label of at most 46 bytes that
// begins with a letter. Two services of a namespace never share one.
func Name(k service.Key, role service.Role) string {
	suffix := "-" + string(role)
	stem := strings.ReplaceAll(plain(k.WorkloadName()), ".", "-")
	if stem == "" || stem[0] < 'a' || stem[0] > 'z' {
		stem = "s" + stem // a Service's name begins with a letter
	}
	return fit(k.WorkloadName(), stem, maxName-len(suffix)) + suffix
}

// LabelValue is a service's name as the value of LabelService: itself, or cut
// and with a hash where it is too long for one.
func LabelValue(name string) string { return fit(name, plain(name), maxLabelValue) }

// RecordName is that of the ControllerRevision that keeps a service's record.
func RecordName(k service.Key) string {
	const prefix = Manager + "-"
	return prefix + fit(k.WorkloadName(), plain(k.WorkloadName()), maxRecordName-len(prefix))
}

// plain replaces the separator of a workload's name, which no object's name may
// have.
func plain(name string) string { return strings.ReplaceAll(name, "~", "-") }

// hashLength counts the hex digits a changed name ends in; marked finds them.
// A name that happens to end so is changed, too, so that none can be taken for
// another's.
const hashLength = 10

var marked = regexp.MustCompile(`-x[0-9a-f]{10}$`)

// fit is stem where that is the name itself and short enough, else as much of
// the stem as fits before a hash of the name.
func fit(name, stem string, length int) string {
	if stem == name && len(name) <= length && !marked.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "-x" + hex.EncodeToString(sum[:])[:hashLength]
	if limit := length - len(hash); len(stem) > limit {
		stem = strings.TrimRight(stem[:limit], "-.")
	}
	return stem + hash
}

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
	// AnnotationModels is of pods: it changes with the list of models that they load.
	AnnotationModels = "roundhouse.dev/models"
)

// Names of a Service's ports.
const (
	PortHTTP = "http"
	PortGRPC = "grpc"
)

// OwnImage as a container's image stands for the image of this program.
const OwnImage = "roundhouse"
