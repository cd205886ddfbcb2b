package dialect

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// onProcess is a warning that a field has no effect on one machine.
func onProcess(message string) note { return note{message, true, Process} }

// never is a warning that a field has no effect anywhere.
func never(message string) note { return note{message, true, AnyPlatform} }

// refused is an error: the field would change what the service answers.
func refused(message string) note { return note{message, false, AnyPlatform} }

const (
	noPlacement = "has no effect on one machine: there is one node to place replicas on"
	noPod       = "has no effect on one machine: replicas are processes, not pods"
	noAccount   = "has no effect on one machine: a process runs as the user who started it"
	noImage     = "has no effect on one machine: no image is pulled"
	noMount     = "has no effect on one machine: nothing is mounted, so paths must exist as they are"
	noMesh      = "has no effect: it is ModelMesh's"
	noKEDA      = "has no effect: write scaleMetric and scaleTarget"

	noTriggers     = "has no effect: a service is scaled on the requests it has in flight"
	noOrchestrator = "has no effect: there is no service orchestrator, the gateway does its work"
	bothTransports = "has no effect: HTTP and gRPC are both served"

	noRequirement = "has no effect yet: name acceleratorClasses"
)

// podNotes are the fields of a pod that mean nothing to a process.
var podNotes = map[string]note{
	"affinity": onProcess(noPlacement), "nodeSelector": onProcess(noPlacement),
	"tolerations": onProcess(noPlacement), "nodeName": onProcess(noPlacement),
	"schedulerName": onProcess(noPlacement), "priorityClassName": onProcess(noPlacement),
	"priority": onProcess(noPlacement), "preemptionPolicy": onProcess(noPlacement),
	"topologySpreadConstraints": onProcess(noPlacement), "schedulingGates": onProcess(noPlacement),

	"imagePullSecrets": onProcess(noImage), "volumes": onProcess(noMount),

	"serviceAccountName": onProcess(noAccount), "serviceAccount": onProcess(noAccount),
	"automountServiceAccountToken": onProcess(noAccount), "securityContext": onProcess(noAccount),

	"activeDeadlineSeconds": onProcess(noPod), "dnsConfig": onProcess(noPod),
	"dnsPolicy": onProcess(noPod), "enableServiceLinks": onProcess(noPod),
	"ephemeralContainers": onProcess(noPod), "hostAliases": onProcess(noPod),
	"hostIPC": onProcess(noPod), "hostNetwork": onProcess(noPod), "hostPID": onProcess(noPod),
	"hostUsers": onProcess(noPod), "hostname": onProcess(noPod),
	"hostnameOverride": onProcess(noPod), "os": onProcess(noPod), "overhead": onProcess(noPod),
	"readinessGates": onProcess(noPod), "resourceClaims": onProcess(noPod),
	"resources": onProcess(noPod), "restartPolicy": onProcess(noPod),
	"runtimeClassName": onProcess(noPod), "setHostnameAsFQDN": onProcess(noPod),
	"shareProcessNamespace": onProcess(noPod), "subdomain": onProcess(noPod),
	"workloadRef": onProcess(noPod), "schedulingGroup": onProcess(noPod),

	"initContainers": onProcess("does not run on one machine: do what it does before starting the service"),
}

// fieldNotes says what a field amounts to that does not go into the hub or has
// no effect somewhere, by the struct that declares it and its json name.
// Fields not listed are read, or only describe.
var fieldNotes = map[reflect.Type]map[string]note{
	reflect.TypeFor[corev1.PodSpec](): podNotes,
	reflect.TypeFor[corev1.Container](): {
		"imagePullPolicy":          onProcess(noImage),
		"volumeMounts":             onProcess(noMount),
		"volumeDevices":            onProcess(noMount),
		"securityContext":          onProcess(noAccount),
		"envFrom":                  onProcess("has no effect on one machine: give the variables to this program's own environment"),
		"startupProbe":             onProcess("has no effect on one machine: startupTimeout bounds a start"),
		"lifecycle":                onProcess(noPod),
		"resizePolicy":             onProcess(noPod),
		"restartPolicy":            onProcess(noPod),
		"restartPolicyRules":       onProcess(noPod),
		"terminationMessagePath":   onProcess(noPod),
		"terminationMessagePolicy": onProcess(noPod),
		"stdin":                    onProcess(noPod),
		"stdinOnce":                onProcess(noPod),
		"tty":                      onProcess(noPod),
	},

	reflect.TypeFor[kserveServiceSpec](): {
		"explainer": refused("is not served yet: remove it, or serve the explainer as a service of its own"),
		"canary":    refused("is not served yet: remove it, or apply the canary as a service of its own"),
	},
	reflect.TypeFor[kservePredictor](): {
		"name":                 onProcess(noPod),
		"storageUris":          refused("is not supported: write one storageUri"),
		"storageContainerName": never("has no effect: models are fetched by Roundhouse itself"),
	},
	reflect.TypeFor[kserveModel](): {
		"confidential": refused("is not supported: the model would be served without it"),
	},
	reflect.TypeFor[kserveStorage](): {
		"schemaPath": never(noMesh),
	},
	reflect.TypeFor[kserveExtension](): {
		"logger":             refused("is not supported yet: remove it; requests are logged by the gateway"),
		"batcher":            refused("is not supported yet: remove it, or batch in the model server's own settings"),
		"timeout":            never("has no effect yet: the gateway's own deadlines hold"),
		"scaleMetricType":    never("has no effect: a target is always an average per replica"),
		"autoScaling":        never("has no effect yet: write scaleMetric and scaleTarget"),
		"deploymentStrategy": onProcess(noPod),
	},
	reflect.TypeFor[kserveRuntimeSpec](): {
		"grpcEndpoint": never(noMesh), "grpcDataEndpoint": never(noMesh),
		"httpDataEndpoint": never(noMesh), "builtInAdapter": never(noMesh), "replicas": never(noMesh),
	},
	reflect.TypeFor[kserveRuntimePod](): only(podNotes, "volumes", "nodeSelector", "affinity",
		"tolerations", "imagePullSecrets", "hostIPC", "schedulerName", "resourceClaims"),

	reflect.TypeFor[omeServiceSpec](): {"kedaConfig": never(noKEDA)},
	reflect.TypeFor[omeExtension](): {
		"timeoutSeconds":     never("has no effect yet: the gateway's own deadlines hold"),
		"kedaConfig":         never(noKEDA),
		"minAvailable":       onProcess(noPod),
		"maxUnavailable":     onProcess(noPod),
		"deploymentStrategy": onProcess(noPod),
	},
	reflect.TypeFor[omeAccelerator](): {
		"constraints": never("has no effect yet: name an acceleratorClass"),
		"policy":      never("has no effect yet: name an acceleratorClass"),
	},
	reflect.TypeFor[omeSupportedFormat](): {
		"modelType":         never("has no effect: runtimes are matched by format, framework, architecture and quantization"),
		"diffusionPipeline": never("has no effect yet: the pipeline is not matched"),
		"acceleratorConfig": never("has no effect yet: give the settings in engineConfig"),
	},
	reflect.TypeFor[omeRequirements](): {
		"minMemory":                   never(noRequirement),
		"minComputePerformanceTFLOPS": never(noRequirement),
		"minArchitectureVersion":      never(noRequirement),
		"requiredFeatures":            never(noRequirement),
		"preferredPrecisions":         never(noRequirement),
	},
	reflect.TypeFor[omeBaseModelSpec](): {
		"diffusionPipeline": never("has no effect yet: the pipeline is not matched"),
	},
	reflect.TypeFor[omeStorage](): {
		"path":           onProcess("has no effect on one machine: models are kept in its own cache"),
		"schemaPath":     never("has no effect"),
		"parameters":     never("has no effect: give settings to this program's own environment"),
		"key":            never("has no effect: give credentials to this program's own environment"),
		"nodeSelector":   onProcess(noPlacement),
		"nodeAffinity":   onProcess(noPlacement),
		"downloadPolicy": never("has no effect: a model is fetched anew only when its source has changed"),
	},
	reflect.TypeFor[seldonSpec](): {
		"name":         never("has no effect: metadata.name names the service"),
		"oauth_key":    never("has no effect, as in Seldon Core 1: guard the gateway"),
		"oauth_secret": never("has no effect, as in Seldon Core 1: guard the gateway"),
		"transport":    never(bothTransports),
	},
	reflect.TypeFor[seldonPredictor](): {
		"engineResources": never(noOrchestrator),
		"svcOrchSpec":     never(noOrchestrator),
		"explainer":       refused("is not served yet: remove it, or serve the explainer as a service of its own"),
		"ssl":             refused("is not supported: remove it, and give the gateway the certificate"),
	},
	reflect.TypeFor[seldonUnit](): {
		"serviceAccountName":      onProcess(noAccount),
		"envSecretRefName":        never("has no effect: give credentials to this program's own environment"),
		"storageInitializerImage": never("has no effect: models are fetched by Roundhouse itself"),
		"logger":                  refused("is not supported yet: remove it; requests are logged by the gateway"),
	},
	reflect.TypeFor[seldonEndpoint](): {
		"type":         never(bothTransports),
		"service_port": never("has no effect: write httpPort or grpcPort"),
	},
	reflect.TypeFor[seldonPod](): {
		"pdbSpec": onProcess(noPod),
	},
	reflect.TypeFor[seldonKEDA](): {
		"pollingInterval": never(noTriggers), "advanced": never(noTriggers),
		"triggers": never(noTriggers), "fallback": never(noTriggers),
	},
	reflect.TypeFor[omeRuntimePod](): only(podNotes, "volumes", "nodeSelector", "affinity", "tolerations",
		"imagePullSecrets", "schedulerName", "hostIPC", "dnsPolicy", "hostNetwork"),
}

// only is the part of a table for the names given.
func only(all map[string]note, names ...string) map[string]note {
	out := map[string]note{}
	for _, n := range names {
		out[n] = all[n]
	}
	return out
}

// NoEffect lists the pod fields that have no effect on a platform, with the
// reason: what a manifest is warned of.
func NoEffect(p Platform) map[string]string {
	out := map[string]string{}
	for _, notes := range []map[string]note{podNotes, fieldNotes[reflect.TypeFor[corev1.Container]()]} {
		for name, n := range maps.All(notes) {
			if n.warning && (n.platform == AnyPlatform || n.platform == p) {
				out[name] = n.message
			}
		}
	}
	return out
}
