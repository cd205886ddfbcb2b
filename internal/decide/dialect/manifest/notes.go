package manifest

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// OnProcess is a warning that a field has no effect on one machine.
func OnProcess(message string) Note { return Note{message, true, Process} }

// Never is a warning that a field has no effect anywhere.
func Never(message string) Note { return Note{message, true, AnyPlatform} }

// Refused is an error: the field would change what the service answers.
func Refused(message string) Note { return Note{message, false, AnyPlatform} }

// What is said of fields that mean nothing to processes.
const (
	NoPlacement = "has no effect on one machine: there is one node to place replicas on"
	NoPod       = "has no effect on one machine: replicas are processes, not pods"
	NoAccount   = "has no effect on one machine: a process runs as the user who started it"
	NoImage     = "has no effect on one machine: no image is pulled"
	NoMount     = "has no effect on one machine: nothing is mounted, so paths must exist as they are"
)

// PodNotes are the fields of a pod that mean nothing to a process.
var PodNotes = map[string]Note{
	"affinity": OnProcess(NoPlacement), "nodeSelector": OnProcess(NoPlacement),
	"tolerations": OnProcess(NoPlacement), "nodeName": OnProcess(NoPlacement),
	"schedulerName": OnProcess(NoPlacement), "priorityClassName": OnProcess(NoPlacement),
	"priority": OnProcess(NoPlacement), "preemptionPolicy": OnProcess(NoPlacement),
	"topologySpreadConstraints": OnProcess(NoPlacement), "schedulingGates": OnProcess(NoPlacement),

	"imagePullSecrets": OnProcess(NoImage), "volumes": OnProcess(NoMount),

	"serviceAccountName": OnProcess(NoAccount), "serviceAccount": OnProcess(NoAccount),
	"automountServiceAccountToken": OnProcess(NoAccount), "securityContext": OnProcess(NoAccount),

	"activeDeadlineSeconds": OnProcess(NoPod), "dnsConfig": OnProcess(NoPod),
	"dnsPolicy": OnProcess(NoPod), "enableServiceLinks": OnProcess(NoPod),
	"ephemeralContainers": OnProcess(NoPod), "hostAliases": OnProcess(NoPod),
	"hostIPC": OnProcess(NoPod), "hostNetwork": OnProcess(NoPod), "hostPID": OnProcess(NoPod),
	"hostUsers": OnProcess(NoPod), "hostname": OnProcess(NoPod),
	"hostnameOverride": OnProcess(NoPod), "os": OnProcess(NoPod), "overhead": OnProcess(NoPod),
	"readinessGates": OnProcess(NoPod), "resourceClaims": OnProcess(NoPod),
	"resources": OnProcess(NoPod), "restartPolicy": OnProcess(NoPod),
	"runtimeClassName": OnProcess(NoPod), "setHostnameAsFQDN": OnProcess(NoPod),
	"shareProcessNamespace": OnProcess(NoPod), "subdomain": OnProcess(NoPod),
	"workloadRef": OnProcess(NoPod), "schedulingGroup": OnProcess(NoPod),

	"initContainers": OnProcess("does not run on one machine: do what it does before starting the service"),
}

// Notes are what a field amounts to that does not go into the hub or has no
// effect somewhere, by the struct that declares it and its json name.
type Notes map[reflect.Type]map[string]Note

// Note is what is said of a kind or a field that is not read into the hub.
type Note struct {
	Message  string
	Warning  bool
	Platform Platform
}

// KubernetesNotes are the notes of Kubernetes' own types. Fields not listed are
// read, or only describe.
var KubernetesNotes = Notes{
	reflect.TypeFor[corev1.PodSpec](): PodNotes,
	reflect.TypeFor[corev1.Container](): {
		"imagePullPolicy":          OnProcess(NoImage),
		"volumeMounts":             OnProcess(NoMount),
		"volumeDevices":            OnProcess(NoMount),
		"securityContext":          OnProcess(NoAccount),
		"envFrom":                  OnProcess("has no effect on one machine: give the variables to this program's own environment"),
		"startupProbe":             OnProcess("has no effect on one machine: startupTimeout bounds a start"),
		"lifecycle":                OnProcess(NoPod),
		"resizePolicy":             OnProcess(NoPod),
		"restartPolicy":            OnProcess(NoPod),
		"restartPolicyRules":       OnProcess(NoPod),
		"terminationMessagePath":   OnProcess(NoPod),
		"terminationMessagePolicy": OnProcess(NoPod),
		"stdin":                    OnProcess(NoPod),
		"stdinOnce":                OnProcess(NoPod),
		"tty":                      OnProcess(NoPod),
	},
}

// Only is the part of a table for the names given.
func Only(all map[string]Note, names ...string) map[string]Note {
	out := map[string]Note{}
	for _, n := range names {
		out[n] = all[n]
	}
	return out
}

// NoEffect lists the pod fields that have no effect on a platform, with the
// reason: what a manifest is warned of.
func NoEffect(p Platform) map[string]string {
	out := map[string]string{}
	for _, notes := range []map[string]Note{PodNotes, KubernetesNotes[reflect.TypeFor[corev1.Container]()]} {
		for name, n := range maps.All(notes) {
			if n.Warning && (n.Platform == AnyPlatform || n.Platform == p) {
				out[name] = n.Message
			}
		}
	}
	return out
}

// Note reports the stated fields that notes know something about.
func (r *Reader) Note(notes Notes) {
	for _, f := range r.doc.Fields {
		if n, ok := notes[f.Owner][f.Name]; ok {
			r.problems = append(r.problems, Problem{Line: f.Line, Column: f.Column, Path: f.Path,
				Message: n.Message, Warning: n.Warning, Platform: n.Platform})
		}
	}
}
