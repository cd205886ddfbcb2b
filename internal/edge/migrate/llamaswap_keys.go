package migrate

import (
	"maps"
	"slices"
	"strings"
)

// Key is one key of llama-swap's configuration, and what becomes of it.
type Key struct {
	// Path has * for the name of a model, a group and the like.
	Path string
	// Becomes is the field of ours; "" where there is none.
	Becomes string
	// Lacks is why there is none, or what is not the same.
	Lacks string
}

const (
	inListing  = "`GET /v1/models` lists names alone"
	bodiesStay = "the gateway changes no request's parameters: state them in the engine's command, or in the client"
	logsAreOwn = "`roundhouse up` has --verbose and --log-format, and `roundhouse logs` each replica's output"
	noPeers    = "a Pool takes servers over plain HTTP, without a key or a path: put a proxy before others"
	noMatrix   = "memory decides which models run together; where that is not enough, write residency.oneOf or residency.exclusive"
)

// LlamaSwapKeys are the keys of llama-swap's config.yaml, as of its schema of August
// 2026.
var LlamaSwapKeys = []Key{
	{"apiKeys", "", "keys are secrets and stay out of manifests: `roundhouse keys create` makes them"},
	{"captureBuffer", "", "the annotation roundhouse.dev/keep-bodies keeps the bodies of one service's requests"},
	{"globalTTL", "scaling.scaleToZeroAfter", ""},
	{"groups", "residency", ""},
	{"groups.*.exclusive", "residency.exclusive, residency.group", ""},
	{"groups.*.members", "residency of each", ""},
	{"groups.*.persistent", "residency.pin", ""},
	{"groups.*.swap", "residency.oneOf", ""},
	{"healthCheckTimeout", "scaling.startupTimeout", ""},
	{"hooks.on_startup.preload", "residency.preload", ""},
	{"includeAliasesInList", "", inListing},
	{"logLevel", "", logsAreOwn},
	{"logRequests", "", "the gateway has an access log"},
	{"logTimeFormat", "", logsAreOwn},
	{"logToStdout", "", logsAreOwn},
	{"macros", "put in where they are used", ""},
	{"matrix", "", noMatrix},
	{"metricsMaxInMemory", "", "`roundhouse requests` keeps the last requests, within a bound of its own"},
	{"models.*.aliases", "Route.models", ""},
	{"models.*.capabilities", "", inListing},
	{"models.*.checkEndpoint", "engine.local.readinessProbe", ""},
	{"models.*.cmd", "engine.local.command", ""},
	{"models.*.cmdStop", "", "a replica is sent SIGTERM; a program that needs another command to stop needs a script before it that takes the signal"},
	{"models.*.compat", "", "no request of a WebSocket is forwarded"},
	{"models.*.concurrencyLimit", "scaling.maxConcurrency", "requests beyond it wait in a queue, and are refused once that is full"},
	{"models.*.description", "", inListing},
	{"models.*.env", "engine.local.env", ""},
	{"models.*.filters", "", bodiesStay},
	{"models.*.healthCheckTimeout", "", "llama-swap overwrites it with the global one"},
	{"models.*.macros", "put in where they are used", ""},
	{"models.*.metadata", "", inListing},
	{"models.*.name", "", inListing},
	{"models.*.proxy", "the port in engine.local.command", ""},
	{"models.*.sendLoadingState", "", "clients wait for the first token; `apply --wait` and `get` show a start"},
	{"models.*.timeouts", "scaling.answerTimeout", "only responseHeader has a counterpart"},
	{"models.*.ttl", "scaling.scaleToZeroAfter", ""},
	{"models.*.unlisted", "", "every model is listed; an API key sees those that it may use"},
	{"models.*.unloadTimeout", "engine.terminationGracePeriodSeconds", ""},
	{"models.*.useModelName", "Route.targets.model", ""},
	{"peers", "Pool and Route", noPeers},
	{"performance", "", "`roundhouse top` and /metrics show the machine"},
	{"profiles", "", "names are those of services and Routes: apply other Routes in their place"},
	{"routing.router.settings.groups", "residency", ""},
	{"routing.router.settings.matrix", "", noMatrix},
	{"routing.router.use", "residency", ""},
	{"routing.scheduler.settings.fifo.priority", "residency.priority", "it decides between models that wait for room; a Route's priority decides between requests"},
	{"routing.scheduler.use", "", "requests of one priority are served in order of arrival"},
	{"selectors", "", "a Route splits by weights, and a Pool with a selector by load; neither prefers the model that is loaded"},
	{"sendLoadingState", "", "clients wait for the first token; `apply --wait` and `get` show a start"},
	{"startPort", "", "ports are given out by the system"},
	{"store", "", "events and usage are kept in the data directory"},
	{"ui", "", "`roundhouse console` opens ours"},
	{"unloadTimeout", "engine.terminationGracePeriodSeconds", ""},
	{"upstream", "", "there is no path past the gateway to a replica"},
}

// stated calls f for the keys that a configuration states, in order, with the row of
// the table; nil is a key that the table lacks.
func stated(config map[string]any, f func(path string, k *Key)) {
	var walk func(path, pattern string, v map[string]any)
	walk = func(path, pattern string, v map[string]any) {
		for _, name := range slices.Sorted(maps.Keys(v)) {
			at, like := name, name
			if path != "" {
				at, like = path+"."+name, pattern+"."+name
			}
			below, isMap := v[name].(map[string]any)
			row := keyOf(like)
			switch {
			case row != nil && row.Path != "groups":
				f(at, row)
			case row == nil && !isMap && !leads(like):
				f(at, nil)
			case like == "models" || like == "groups":
				for _, id := range slices.Sorted(maps.Keys(below)) {
					if m, ok := below[id].(map[string]any); ok {
						walk(at+"."+id, like+".*", m)
					}
				}
			case leads(like):
				walk(at, like, below)
			default:
				f(at, nil)
			}
		}
	}
	walk("", "", config)
}

func keyOf(pattern string) *Key {
	i := slices.IndexFunc(LlamaSwapKeys, func(k Key) bool { return k.Path == pattern })
	if i < 0 {
		return nil
	}
	return &LlamaSwapKeys[i]
}

// leads reports whether keys of the table begin so.
func leads(pattern string) bool {
	return slices.ContainsFunc(LlamaSwapKeys, func(k Key) bool { return strings.HasPrefix(k.Path, pattern+".") })
}
