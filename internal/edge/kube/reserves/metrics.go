package reserves

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

const (
	// maxReserveSeries is of how many Reserves metrics are told, by namespace and
	// name, and maxNodeSeries of how many nodes' pulls.
	maxReserveSeries = 200
	maxNodeSeries    = 2_000
)

// tallies are what the metrics tell. It is safe for concurrent use.
type tallies struct {
	mu        sync.Mutex
	reserves  map[client.ObjectKey]api.ReserveStatus
	preempted map[client.ObjectKey]float64
	pulls     map[pullsOf]float64
}

// pullsOf is what pulls are counted by.
type pullsOf struct{ node, result string }

func newTallies() *tallies {
	return &tallies{reserves: map[client.ObjectKey]api.ReserveStatus{}, preempted: map[client.ObjectKey]float64{}, pulls: map[pullsOf]float64{}}
}

// status notes how a Reserve is.
func (t *tallies) status(k client.ObjectKey, s api.ReserveStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserves[k] = s
}

// pulled counts a pull that has ended.
func (t *tallies) pulled(node string, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := pullsOf{node, "pulled"}
	if !done {
		p.result = "failed"
	}
	if _, known := t.pulls[p]; known || len(t.pulls) < 2*maxNodeSeries {
		t.pulls[p]++
	}
}

// placeholder counts a placeholder that the scheduler preempts, once.
func (t *tallies) placeholder(before, now *corev1.Pod) {
	if !preempted(now) || before != nil && preempted(before) || now.Labels[reserve.LabelReserve] == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.preempted[client.ObjectKey{Namespace: now.Namespace, Name: now.Labels[reserve.LabelReserve]}]++
}

func preempted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// keep forgets Reserves and nodes that are gone.
func (t *tallies) keep(w *world) {
	t.mu.Lock()
	defer t.mu.Unlock()
	there := map[client.ObjectKey]bool{}
	for _, u := range w.reserves {
		there[client.ObjectKeyFromObject(u)] = true
	}
	for k := range t.reserves {
		if !there[k] {
			delete(t.reserves, k)
		}
	}
	for k := range t.preempted {
		if !there[k] {
			delete(t.preempted, k)
		}
	}
	for p := range t.pulls {
		if !slices.ContainsFunc(w.nodes, func(n reserve.Node) bool { return n.Name == p.node }) {
			delete(t.pulls, p)
		}
	}
}

var (
	placeholdersDesc = prometheus.NewDesc("roundhouse_reserve_placeholders", "Placeholders of a Reserve: wanted; running, which hold their room; pending, which wait for it.", []string{"namespace", "reserve", "state"}, nil)
	preemptedDesc    = prometheus.NewDesc("roundhouse_reserve_placeholders_preempted_total", "Placeholders of a Reserve that made room for other pods, since this controller began to lead.", []string{"namespace", "reserve"}, nil)
	imagesDesc       = prometheus.NewDesc("roundhouse_reserve_images", "Images of a Reserve, on each of its nodes: wanted, present, pulling, failed.", []string{"namespace", "reserve", "state"}, nil)
	pullsDesc        = prometheus.NewDesc("roundhouse_reserve_image_pulls_total", "Images that were pulled onto a node ahead of pods, or could not be, since this controller began to lead.", []string{"node", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{placeholdersDesc, preemptedDesc, imagesDesc, pullsDesc} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(c chan<- prometheus.Metric) {
	t := k.tallies
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]client.ObjectKey, 0, len(t.reserves))
	for k := range t.reserves {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, key := range keys[:min(len(keys), maxReserveSeries)] {
		gauge := func(d *prometheus.Desc, n int, state string) {
			c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), key.Namespace, key.Name, state)
		}
		if p := t.reserves[key].Placeholders; p != nil {
			gauge(placeholdersDesc, p.Wanted, "wanted")
			gauge(placeholdersDesc, p.Running, "running")
			gauge(placeholdersDesc, p.Pending, "pending")
			c <- prometheus.MustNewConstMetric(preemptedDesc, prometheus.CounterValue, t.preempted[key], key.Namespace, key.Name)
		}
		if i := t.reserves[key].Images; i != nil {
			gauge(imagesDesc, i.Wanted, "wanted")
			gauge(imagesDesc, i.Present, "present")
			gauge(imagesDesc, i.Pulling, "pulling")
			gauge(imagesDesc, i.Failed, "failed")
		}
	}
	for p, n := range t.pulls {
		c <- prometheus.MustNewConstMetric(pullsDesc, prometheus.CounterValue, n, p.node, p.result)
	}
}
