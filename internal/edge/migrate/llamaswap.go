package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// swapConfig is what is read of llama-swap's configuration once its macros are
// expanded.
type swapConfig struct {
	HealthCheckTimeout int                  `yaml:"healthCheckTimeout"`
	GlobalTTL          int                  `yaml:"globalTTL"`
	UnloadTimeout      int                  `yaml:"unloadTimeout"`
	Models             map[string]swapModel `yaml:"models"`
	Groups             map[string]swapGroup `yaml:"groups"`
	Matrix             any                  `yaml:"matrix"`
	Hooks              struct {
		OnStartup struct {
			Preload []string `yaml:"preload"`
		} `yaml:"on_startup"`
	} `yaml:"hooks"`
	Routing struct {
		Router struct {
			Use      string `yaml:"use"`
			Settings struct {
				Groups map[string]swapGroup `yaml:"groups"`
				Matrix any                  `yaml:"matrix"`
			} `yaml:"settings"`
		} `yaml:"router"`
		Scheduler struct {
			Settings struct {
				Fifo struct {
					Priority map[string]int `yaml:"priority"`
				} `yaml:"fifo"`
			} `yaml:"settings"`
		} `yaml:"scheduler"`
	} `yaml:"routing"`
	Peers map[string]swapPeer `yaml:"peers"`
}

type swapModel struct {
	Cmd              string   `yaml:"cmd"`
	Proxy            string   `yaml:"proxy"`
	Aliases          []string `yaml:"aliases"`
	Env              []string `yaml:"env"`
	CheckEndpoint    *string  `yaml:"checkEndpoint"`
	TTL              *int     `yaml:"ttl"`
	UnloadTimeout    int      `yaml:"unloadTimeout"`
	UseModelName     string   `yaml:"useModelName"`
	ConcurrencyLimit int      `yaml:"concurrencyLimit"`
	Filters          struct {
		SetParamsByID map[string]any `yaml:"setParamsByID"`
	} `yaml:"filters"`
	Timeouts struct {
		ResponseHeader int `yaml:"responseHeader"`
	} `yaml:"timeouts"`
}

type swapGroup struct {
	Swap       *bool    `yaml:"swap"`
	Exclusive  *bool    `yaml:"exclusive"`
	Persistent bool     `yaml:"persistent"`
	Members    []string `yaml:"members"`
}

type swapPeer struct {
	Proxy   string   `yaml:"proxy"`
	APIKey  string   `yaml:"apiKey"`
	Models  []string `yaml:"models"`
	Filters any      `yaml:"filters"`
}

const (
	// llama-swap's own default and least time for a model to become ready, in seconds.
	swapStart, swapLeastStart = 120, 15
	// swapPriority bounds residency.priority.
	swapPriority = 1000
)

// LlamaSwap reads llama-swap's configuration, a file of root. variables are those of
// the environment that may be put in for ${env.NAME}; with gpu the models share GPUs.
func LlamaSwap(root fs.FS, file string, variables map[string]string, gpu bool) (*Migration, error) {
	data, err := readFile(root, file)
	if err != nil {
		return nil, err
	}
	s := swap{file: file, gpu: gpu, out: &Migration{}, names: names{}, broken: map[string]error{}}
	if err := s.read(data, variables); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(s.config.Models) > maxModels {
		return nil, fmt.Errorf("%s: models: %d are more than the %d that one migration takes", file, len(s.config.Models), maxModels)
	}
	s.groups()
	for _, id := range slices.Sorted(maps.Keys(s.config.Models)) {
		s.model(id, s.config.Models[id])
	}
	for _, id := range slices.Sorted(maps.Keys(s.config.Peers)) {
		s.peer(id, s.config.Peers[id])
	}
	s.out.noteGPU(gpu)
	return s.out, nil
}

// swap is one configuration that is read.
type swap struct {
	file   string
	gpu    bool
	config swapConfig
	notes  map[string][]string // of each model
	broken map[string]error    // models whose macros cannot be expanded
	group  map[string]string   // of each model; "" is none
	names  names
	out    *Migration
}

// read expands the macros and reads the fields, and notes what has no counterpart.
func (s *swap) read(data []byte, variables map[string]string) (err error) {
	defer func() { // the parser is another's
		if e := recover(); e != nil {
			err = fmt.Errorf("is not YAML: %v", e)
		}
	}()
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return err
	}
	var raw map[string]any
	if err := doc.Decode(&raw); err != nil {
		return err
	}
	if err := expandConfig(&doc, raw, variables, s.broken); err != nil {
		return err
	}
	text, err := yaml.Marshal(raw)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &s.config); err != nil {
		return err
	}
	s.notes = map[string][]string{}
	stated(raw, func(path string, k *Key) {
		text := "is no key that is known: it was passed over"
		if k != nil {
			text = k.Lacks
		}
		if text == "" || k != nil && (k.Path == "peers" || k.Path == "groups") {
			return
		}
		rest, ofModel := strings.CutPrefix(path, "models.")
		at := strings.LastIndexByte(rest, '.')
		if !ofModel || at < 0 {
			s.out.note("%s: %s", path, text)
			return
		}
		s.notes[rest[:at]] = append(s.notes[rest[:at]], rest[at+1:]+": "+text)
	})
	return nil
}

// defaultGroup is llama-swap's group of the models that no group names.
const defaultGroup = "default"

// groups finds the group of each model.
func (s *swap) groups() {
	c := &s.config
	s.group = map[string]string{}
	if use := c.Routing.Router.Use; c.Matrix != nil || use == "matrix" {
		c.Groups = nil
		return
	}
	if len(c.Groups) == 0 {
		c.Groups = c.Routing.Router.Settings.Groups
	}
	grouped := maps.Clone(c.Groups)
	if grouped == nil {
		grouped = map[string]swapGroup{}
	}
	for _, id := range slices.Sorted(maps.Keys(grouped)) {
		for _, member := range grouped[id].Members {
			s.group[member] = id
		}
	}
	for id := range c.Models {
		if s.group[id] == "" {
			s.group[id] = defaultGroup
			grouped[defaultGroup] = swapGroup{}
		}
	}
	c.Groups = grouped
}

// model makes a service of a model.
func (s *swap) model(id string, m swapModel) {
	from := fmt.Sprintf("%s: models.%s", s.file, id)
	if err := s.broken[id]; err != nil {
		s.out.leave("%s: %s", from, err)
		return
	}
	d := Document{From: from + " of llama-swap"}
	for _, n := range s.notes[id] {
		d.note("%s", n)
	}
	command, err := s.command(&d, m)
	if err != nil {
		s.out.leave("%s: %s", from, err)
		return
	}
	d.Name = s.names.take(id)
	service := newService(d.Name)
	spec := &service.Spec
	spec.Protocol = "openAI"
	spec.Scaling = s.scaling(m)
	spec.Residency = s.residency(&d, id)
	spec.Engine = &api.Component{Local: &api.Local{Command: command, ReadinessProbe: swapProbe(m)}}
	for i, e := range m.Env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			d.note("env[%d] is not NAME=VALUE: it was passed over", i)
			continue
		}
		if name == visibleGPUs {
			spec.Engine.Resources = swapGPUs(&d, value)
			continue
		}
		spec.Engine.Local.Env = append(spec.Engine.Local.Env, corev1.EnvVar{Name: name, Value: template(value)})
	}
	if n := cmp.Or(m.UnloadTimeout, s.config.UnloadTimeout); n > 0 {
		spec.Engine.TerminationGracePeriodSeconds = ptr(int64(n))
	}
	d.Objects = append(d.Objects, service)
	others := slices.Concat(m.Aliases, slices.Collect(maps.Keys(m.Filters.SetParamsByID)))
	if id != d.Name || m.UseModelName != "" || len(others) > 0 {
		route := newRoute(d.Name, cmp.Or(m.UseModelName, id), append(others, id)...)
		d.Objects = append(d.Objects, route)
	}
	s.out.Documents = append(s.out.Documents, d)
}

// visibleGPUs is the variable by which a process is given GPUs.
const visibleGPUs = "CUDA_VISIBLE_DEVICES"

// swapGPUs asks for as many GPUs as a model was shown.
func swapGPUs(d *Document, list string) *corev1.ResourceRequirements {
	n := len(strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }))
	if n == 0 || n > maxGPUs {
		return nil
	}
	d.note("env %s=%s became a limit of %d: which GPUs these are is decided at each start", visibleGPUs, list, n)
	return &corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(int64(n), resource.DecimalSI)}}
}

// maxGPUs is how many one model may be shown.
const maxGPUs = 64

// command is a model's command line, with the port that the replica is given.
func (s *swap) command(d *Document, m swapModel) ([]string, error) {
	words, err := splitCommand(m.Cmd)
	if err != nil {
		return nil, fmt.Errorf("cmd: %w", err)
	}
	address := cmp.Or(m.Proxy, "http://localhost:"+portMark)
	proxy, err := url.Parse(strings.ReplaceAll(address, portMark, "1"))
	if err != nil {
		return nil, fmt.Errorf("proxy: is no URL")
	}
	if proxy.Path != "" && proxy.Path != "/" {
		d.note("proxy: its path %s is not put before the paths of requests", proxy.Path)
	}
	if host := proxy.Hostname(); proxy.Scheme != "http" || host != "localhost" && host != "127.0.0.1" && host != "::1" {
		return nil, fmt.Errorf("proxy: %s is not this machine's over HTTP: write a Pool for a server that runs elsewhere", proxy.Host)
	}
	found, port := false, cmp.Or(proxy.Port(), "80")
	for i, w := range words {
		if fixed := replaceNumber(w, port, portMark); !strings.Contains(address, portMark) && fixed != w {
			d.note("proxy: in cmd the port %s became the port that the replica is given", port)
			w = fixed
		}
		found = found || strings.Contains(w, portMark)
		words[i] = template(w)
	}
	if !found {
		return nil, errors.New("cmd: it has neither ${PORT} nor the port of proxy: each replica is given a port of its own, which its command must take")
	}
	if name := words[0]; name == "docker" || name == "podman" {
		d.note("cmd: it runs as it is, as a client of %s; write engine.containers with the image to have Roundhouse run the container itself", name)
	}
	return words, nil
}

// replaceNumber puts mark in the place of a number that is no part of a longer one.
func replaceNumber(w, number, mark string) string {
	digit := func(i int) bool { return i >= 0 && i < len(w) && w[i] >= '0' && w[i] <= '9' }
	var b strings.Builder
	for i := 0; i < len(w); {
		if strings.HasPrefix(w[i:], number) && !digit(i-1) && !digit(i+len(number)) {
			b.WriteString(mark)
			i += len(number)
			continue
		}
		b.WriteByte(w[i])
		i++
	}
	return b.String()
}

// template is a text as a template that leaves everything but the port as it is.
func template(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "{{", `{{"{{"}}`), portMark, "{{.Port}}")
}

func swapProbe(m swapModel) *corev1.Probe {
	path := "/health"
	if m.CheckEndpoint != nil && *m.CheckEndpoint != "" {
		path = *m.CheckEndpoint
	}
	port := intstr.FromString("{{.Port}}")
	if path == "none" {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: port}}}
}

// maxSeconds bounds a time that a configuration states.
const maxSeconds = 365 * 24 * 3600

func seconds(n int) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(min(n, maxSeconds)) * time.Second}
}

// scaling is one process that stops when it is idle, or for others alone.
func (s *swap) scaling(m swapModel) *api.Scaling {
	out := &api.Scaling{MinReplicas: ptr(0), MaxReplicas: ptr(1)}
	out.StartupTimeout = seconds(max(cmp.Or(s.config.HealthCheckTimeout, swapStart), swapLeastStart))
	ttl := s.config.GlobalTTL
	if m.TTL != nil && *m.TTL >= 0 {
		ttl = *m.TTL
	}
	if ttl <= 0 {
		ttl = maxSeconds
	}
	out.ScaleToZeroAfter = seconds(ttl)
	if m.ConcurrencyLimit > 0 {
		out.MaxConcurrency = &m.ConcurrencyLimit
	}
	if n := m.Timeouts.ResponseHeader; n > 0 {
		out.AnswerTimeout = seconds(n)
	}
	return out
}

// residency is the model's group, its preloading and its priority.
func (s *swap) residency(d *Document, id string) *api.Residency {
	out := api.Residency{
		ShareGPU: s.gpu,
		Preload:  slices.Contains(s.config.Hooks.OnStartup.Preload, id),
		Priority: min(max(s.config.Routing.Scheduler.Settings.Fifo.Priority[id], -swapPriority), swapPriority),
	}
	if g, ok := s.config.Groups[s.group[id]]; ok {
		name := names{}.take(s.group[id])
		others := slices.ContainsFunc(slices.Collect(maps.Values(s.group)), func(o string) bool { return o != s.group[id] })
		alone := g.Swap == nil || *g.Swap
		if alone && len(s.config.Models) > 1 {
			out.OneOf = name
		}
		if others {
			out.Group, out.Exclusive = name, g.Exclusive == nil || *g.Exclusive
		}
		if out.Pin = g.Persistent; out.Pin && alone {
			d.note("groups.%s: persistent and swap together: residency.pin also keeps the model from making room for others of its group", s.group[id])
		}
	}
	if out == (api.Residency{}) {
		return nil
	}
	return &out
}

// peer makes a pool of a server elsewhere, if a pool can reach it.
func (s *swap) peer(id string, p swapPeer) {
	from := fmt.Sprintf("%s: peers.%s", s.file, id)
	u, err := url.Parse(p.Proxy)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || p.APIKey != "" {
		s.out.leave("%s: %s", from, noPeers)
		return
	}
	d := Document{From: from + " of llama-swap", Name: s.names.take(id)}
	if p.Filters != nil {
		d.note("filters: %s", bodiesStay)
	}
	pool := &api.Pool{}
	pool.TypeMeta, pool.Metadata = meta(api.KindPool, d.Name)
	pool.Spec.Addresses = []string{u.Hostname() + ":" + cmp.Or(u.Port(), "80")}
	if strings.Contains(u.Hostname(), ":") {
		pool.Spec.Addresses = []string{"[" + u.Hostname() + "]:" + cmp.Or(u.Port(), "80")}
	}
	d.Objects = append(d.Objects, pool)
	if len(p.Models) > 0 {
		route := newRoute("", "", p.Models...)
		route.Metadata.Name = d.Name
		route.Spec.Targets = []api.RouteTarget{{Pool: d.Name}}
		d.Objects = append(d.Objects, route)
	}
	s.out.Documents = append(s.out.Documents, d)
}
