package kube

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// AnnotationTakeOver on a manifest is a time (RFC 3339): what other managers
// wrote into its status before then no longer keeps Roundhouse from it. It is
// how a person hands an object over whose former controller is gone.
const AnnotationTakeOver = "roundhouse.dev/take-over"

// NoticeManager owns the one condition that is written into a status which
// somebody else keeps.
const NoticeManager = shape.FieldManager + "-notice"

// StatusWriter is somebody else who keeps an object's status.
type StatusWriter struct {
	Manager string
	At      time.Time
}

// OtherWriter finds who else keeps an object's status: a field manager that
// wrote it after we last did, or that ever did where we never have. nil when
// nobody does. Managed fields carry whole seconds, so within one both may have
// written: then ours stands, and the other's next write tells.
func OtherWriter(o metav1.Object) *StatusWriter {
	ours, _ := time.Parse(time.RFC3339, o.GetAnnotations()[AnnotationTakeOver])
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "status" && f.Manager == shape.FieldManager && f.Time != nil && f.Time.After(ours) {
			ours = f.Time.Time
		}
	}
	var other *StatusWriter
	for _, f := range o.GetManagedFields() {
		if f.Subresource != "status" || f.Manager == shape.FieldManager || f.Manager == NoticeManager || f.Time == nil {
			continue
		}
		if at := f.Time.Time; at.After(ours) && (other == nil || at.After(other.At)) {
			other = &StatusWriter{f.Manager, at}
		}
	}
	return other
}
