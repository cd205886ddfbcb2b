package gateway

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// The Gateway API Inference Extension's kinds, as far as their published
// schemas go.

type model struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		ModelName    string        `json:"modelName"`
		Criticality  string        `json:"criticality"`
		TargetModels []targetModel `json:"targetModels"`
		PoolRef      *ref          `json:"poolRef"`
	} `json:"spec"`
}

type targetModel struct {
	Name   string `json:"name"`
	Weight *int32 `json:"weight"`
}

type ref struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

type poolV1alpha2 struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            poolSpecV1alpha2  `json:"spec"`
}

type poolSpecV1alpha2 struct {
	Selector         map[string]string `json:"selector"`
	TargetPortNumber *int32            `json:"targetPortNumber"`
	ExtensionRef     *extension        `json:"extensionRef"`
}

type extension struct {
	Group       string `json:"group"`
	Kind        string `json:"kind"`
	Name        string `json:"name"`
	PortNumber  *int32 `json:"portNumber"`
	FailureMode string `json:"failureMode"`
}

type poolV1 struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            poolSpecV1        `json:"spec"`
}

type poolSpecV1 struct {
	Selector *struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	TargetPorts []struct {
		Number int32 `json:"number"`
	} `json:"targetPorts"`
	AppProtocol       string     `json:"appProtocol"`
	EndpointPickerRef *pickerRef `json:"endpointPickerRef"`
}

type pickerRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Port  *struct {
		Number int32 `json:"number"`
	} `json:"port"`
	// PortNumber is what the port was called before v1 settled.
	PortNumber  *int32 `json:"portNumber"`
	FailureMode string `json:"failureMode"`
}

// poolImport is all status, which a controller of several clusters writes.
type poolImport struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
}

type objective struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		Priority *int32 `json:"priority"`
		PoolRef  *ref   `json:"poolRef"`
	} `json:"spec"`
}

type rewrite struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		PoolRef *ref          `json:"poolRef"`
		Rules   []rewriteRule `json:"rules"`
	} `json:"spec"`
}

type rewriteRule struct {
	Matches []struct {
		Model *struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"model"`
	} `json:"matches"`
	Targets []struct {
		ModelRewrite string `json:"modelRewrite"`
		Weight       *int32 `json:"weight"`
	} `json:"targets"`
}

// The Gateway API's HTTPRoute.

type httpRoute struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            httpRouteSpec     `json:"spec"`
}

type httpRouteSpec struct {
	ParentRefs []httpParentRef `json:"parentRefs"`
	Hostnames  []string        `json:"hostnames"`
	Rules      []httpRule      `json:"rules"`
}

type httpParentRef struct {
	Group       string `json:"group"`
	Kind        string `json:"kind"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	SectionName string `json:"sectionName"`
	Port        *int32 `json:"port"`
}

type httpRule struct {
	Name        string        `json:"name"`
	Matches     []httpMatch   `json:"matches"`
	Filters     []httpFilter  `json:"filters"`
	BackendRefs []httpRef     `json:"backendRefs"`
	Timeouts    *httpTimeouts `json:"timeouts"`
	Retry       *httpRetry    `json:"retry"`
	// SessionPersistence keeps a session on one endpoint.
	SessionPersistence any `json:"sessionPersistence"`
}

type httpMatch struct {
	Path        *httpValue  `json:"path"`
	Headers     []httpValue `json:"headers"`
	QueryParams []httpValue `json:"queryParams"`
	Method      string      `json:"method"`
}

// httpValue is a match of a path (without a name), header or parameter.
type httpValue struct {
	Type  string  `json:"type"`
	Name  string  `json:"name"`
	Value *string `json:"value"`
}

type httpRef struct {
	Group     string       `json:"group"`
	Kind      string       `json:"kind"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Port      *int32       `json:"port"`
	Weight    *int32       `json:"weight"`
	Filters   []httpFilter `json:"filters"`
}

// The Gateway API's GRPCRoute, where it differs from an HTTPRoute.

type grpcRoute struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            grpcRouteSpec     `json:"spec"`
}

type grpcRouteSpec struct {
	ParentRefs []httpParentRef `json:"parentRefs"`
	Hostnames  []string        `json:"hostnames"`
	Rules      []grpcRule      `json:"rules"`
}

type grpcRule struct {
	Name        string       `json:"name"`
	Matches     []grpcMatch  `json:"matches"`
	Filters     []grpcFilter `json:"filters"`
	BackendRefs []grpcRef    `json:"backendRefs"`
	// SessionPersistence keeps a session on one endpoint.
	SessionPersistence any `json:"sessionPersistence"`
}

type grpcMatch struct {
	Method  *grpcMethod `json:"method"`
	Headers []httpValue `json:"headers"`
}

type grpcMethod struct {
	Type    string `json:"type"`
	Service string `json:"service"`
	Method  string `json:"method"`
}

type grpcFilter struct {
	Type                   string         `json:"type"`
	RequestMirror          *httpMirror    `json:"requestMirror"`
	RequestHeaderModifier  *headerFilter  `json:"requestHeaderModifier"`
	ResponseHeaderModifier *headerFilter  `json:"responseHeaderModifier"`
	ExtensionRef           map[string]any `json:"extensionRef"`
}

type grpcRef struct {
	Group     string       `json:"group"`
	Kind      string       `json:"kind"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Port      *int32       `json:"port"`
	Weight    *int32       `json:"weight"`
	Filters   []grpcFilter `json:"filters"`
}

const pickedHere = "has no effect on one machine: endpoints are picked here"

var noSessions = manifest.Never("has no effect yet: requests with a common prefix stay together by themselves")

// Notes are those of this dialect's types.
var Notes = manifest.Notes{
	reflect.TypeFor[poolSpecV1alpha2](): {"extensionRef": manifest.OnProcess(pickedHere)},
	reflect.TypeFor[poolSpecV1]():       {"endpointPickerRef": manifest.OnProcess(pickedHere)},
	reflect.TypeFor[httpRule]():         {"sessionPersistence": noSessions},
	reflect.TypeFor[grpcRule]():         {"sessionPersistence": noSessions},
}
